//! Tool calls in the text of a reply, as the model's family writes them.

mod elements;
mod gemma;
mod json;
mod marked;
mod python;
mod reader;
mod tagged;
mod typed;

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};

use serde_json::Value;

use self::reader::{Line, Reader, lock};
use super::tool_call::ToolCallDelta;

/// How calls are written.
#[derive(Debug, Clone, Copy)]
enum Family {
    Bare,
    Cohere,
    DeepSeek,
    Dsml,
    Gemma4,
    Glm,
    Hermes,
    Hy,
    Inkling,
    KimiK2,
    KimiK3,
    Llama,
    MinimaxM2,
    MinimaxM3,
    Mistral,
    /// Not at all.
    Passthrough,
    Pythonic,
    QwenXml,
    Sarashina,
    Step3,
}

/// The parsers by their names; vLLM's names are aliases of them.
const FAMILIES: [(&str, Family); 26] = [
    ("cohere", Family::Cohere),
    ("deepseek", Family::DeepSeek),
    ("deepseek31", Family::DeepSeek),
    ("deepseek32", Family::Dsml),
    ("deepseek_v4", Family::Dsml),
    ("deepseek_v41", Family::Dsml),
    ("gemma4", Family::Gemma4),
    ("glm45_moe", Family::Glm),
    ("glm47_moe", Family::Glm),
    ("hy_v4", Family::Hy),
    ("inkling", Family::Inkling),
    ("json", Family::Bare),
    ("kimi_k3", Family::KimiK3),
    ("kimik2", Family::KimiK2),
    ("llama", Family::Llama),
    ("minimax_m2", Family::MinimaxM2),
    ("minimax_m3", Family::MinimaxM3),
    ("mistral", Family::Mistral),
    ("nemotron", Family::QwenXml),
    ("passthrough", Family::Passthrough),
    ("pythonic", Family::Pythonic),
    ("qwen", Family::Hermes),
    ("qwen_coder", Family::QwenXml),
    ("qwen_xml", Family::QwenXml),
    ("sarashina", Family::Sarashina),
    ("step3", Family::Step3),
];

pub(super) fn names() -> Vec<String> {
    FAMILIES.iter().map(|(name, _)| (*name).to_owned()).collect()
}

impl Family {
    /// What begins something to be read, which is calls as a rule.
    const fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Bare => &marked::JSON,
            Self::Cohere => &marked::COHERE_MARKS,
            Self::DeepSeek => &marked::DEEPSEEK,
            Self::Dsml => &tagged::DSML,
            Self::Gemma4 => &gemma::MARKS,
            Self::Glm => &tagged::GLM,
            Self::Hermes => &marked::HERMES,
            Self::Hy => &tagged::HY,
            Self::Inkling => &marked::INKLING_MARKS,
            Self::KimiK2 => &marked::KIMI_K2,
            Self::KimiK3 => &tagged::KIMI_K3,
            Self::Llama => &marked::LLAMA,
            Self::MinimaxM2 => &tagged::MINIMAX_M2,
            Self::MinimaxM3 => &elements::MARKS,
            Self::Mistral => &marked::MISTRAL,
            Self::Passthrough => &[],
            Self::Pythonic => &python::PYTHONIC,
            Self::QwenXml => &tagged::QWEN,
            Self::Sarashina => &python::SARASHINA,
            Self::Step3 => &tagged::STEP3,
        }
    }

    /// Reads a reply from its begin to its end.
    async fn read(self, mut reader: Reader) {
        while let Some(mark) = reader.find(self.marks()).await {
            let read = match self {
                Self::Bare => marked::bare(&mut reader, mark).await,
                Self::Cohere => marked::cohere(&mut reader, mark).await,
                Self::DeepSeek => marked::deepseek(&mut reader, mark).await,
                Self::Dsml => tagged::dsml(&mut reader, mark).await,
                Self::Gemma4 => gemma::call(&mut reader).await,
                Self::Glm => tagged::glm(&mut reader, "").await,
                Self::Hermes => marked::hermes(&mut reader).await,
                Self::Hy => tagged::hy(&mut reader).await,
                Self::Inkling => marked::inkling(&mut reader, mark).await,
                Self::KimiK2 => marked::kimi_k2(&mut reader, mark).await,
                Self::KimiK3 => tagged::kimi_k3(&mut reader, mark).await,
                Self::Llama => marked::llama(&mut reader, mark).await,
                Self::MinimaxM2 => tagged::minimax_m2(&mut reader).await,
                Self::MinimaxM3 => elements::calls(&mut reader).await,
                Self::Mistral => marked::mistral(&mut reader).await,
                Self::Passthrough => Ok(()),
                Self::Pythonic => python::pythonic(&mut reader, mark).await,
                Self::QwenXml => tagged::qwen(&mut reader, mark).await,
                Self::Sarashina => python::sarashina(&mut reader, mark).await,
                Self::Step3 => tagged::step3(&mut reader, mark).await,
            };
            reader.settle(read).await;
        }
    }
}

/// The calls of one reply.
#[derive(derive_more::Debug)]
#[debug("ToolCalls of {line:?}")]
pub(super) struct ToolCalls {
    line: Arc<Mutex<Line>>,
    /// `None` once the reply is over.
    reading: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl ToolCalls {
    /// `None` where no parser has this name.
    pub(super) fn new(name: &str, tools: &Arc<[Value]>) -> Option<Self> {
        let (_, family) = FAMILIES.iter().find(|(known, _)| *known == name)?;
        let line = Arc::new(Mutex::new(Line::default()));
        let reader = Reader::new(Arc::clone(&line), Arc::clone(tools));
        Some(Self { line, reading: Some(Box::pin(family.read(reader))) })
    }

    /// The text beside calls, and what calls gained.
    pub(super) fn push(&mut self, text: &str) -> (String, Vec<ToolCallDelta>) {
        lock(&self.line).incoming.push_str(text);
        self.read_on()
    }

    /// What is left when the reply is over.
    pub(super) fn finish(&mut self) -> (String, Vec<ToolCallDelta>) {
        lock(&self.line).is_over = true;
        self.read_on()
    }

    fn read_on(&mut self) -> (String, Vec<ToolCallDelta>) {
        if let Some(reading) = &mut self.reading
            // It waits for text alone, which no one else brings: nobody has to wake it.
            && reading.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        {
            self.reading = None;
        }
        let mut line = lock(&self.line);
        (std::mem::take(&mut line.spoken), std::mem::take(&mut line.calls))
    }
}
