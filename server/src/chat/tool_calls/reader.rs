//! A reply as one run of characters, however it is cut: who reads it asks for the next and waits.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use serde_json::Value;

use crate::chat::tool_call::ToolCallDelta;

/// What looked like a call is none, or no more of one.
#[derive(Debug)]
pub(super) struct NoCall;

/// What a part of a call was read to.
pub(super) type Read<T = ()> = Result<T, NoCall>;

/// Between the reply that comes and its reader.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) incoming: String,
    pub(super) is_over: bool,
    pub(super) spoken: String,
    pub(super) calls: Vec<ToolCallDelta>,
}

/// The end of a [`Line`] at which a parser reads and tells what it found.
///
/// A parser is one function from the reply's begin to its end that waits for characters, so what it
/// finds can't depend on how the reply was cut.
#[derive(Debug)]
pub(super) struct Reader {
    line: Arc<Mutex<Line>>,
    tools: Arc<[Value]>,
    /// Came, and was only looked at.
    ahead: VecDeque<char>,
    /// Was read and is part of no call yet: text, should none come of it.
    held: String,
    /// White space behind text, which is a call's if one follows.
    gap: String,
    /// The tool of the call whose arguments grow.
    open: Option<usize>,
    /// What its arguments lack where it breaks off before the reply is over.
    closer: &'static str,
    /// Calls that have begun.
    begun: usize,
    called_since_mark: bool,
    spoken_since_call: bool,
}

pub(super) fn lock(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Reader {
    pub(super) fn new(line: Arc<Mutex<Line>>, tools: Arc<[Value]>) -> Self {
        Self {
            line,
            tools,
            ahead: VecDeque::new(),
            held: String::new(),
            gap: String::new(),
            open: None,
            closer: "",
            begun: 0,
            called_since_mark: false,
            spoken_since_call: false,
        }
    }

    async fn peek_at(&mut self, place: usize) -> Option<char> {
        std::future::poll_fn(|_| {
            if self.ahead.len() <= place {
                let mut line = lock(&self.line);
                self.ahead.extend(line.incoming.chars());
                line.incoming.clear();
                if self.ahead.len() <= place && !line.is_over {
                    return Poll::Pending;
                }
            }
            Poll::Ready(self.ahead.get(place).copied())
        })
        .await
    }

    /// The next character, which stays; `None` where the reply is over.
    pub(super) async fn peek(&mut self) -> Option<char> {
        self.peek_at(0).await
    }

    /// What follows the next character and white space. All of it stays.
    pub(super) async fn peek_behind(&mut self) -> Option<char> {
        let mut place = 1;
        while self.peek_at(place).await.is_some_and(char::is_whitespace) {
            place += 1;
        }
        self.peek_at(place).await
    }

    /// Whether this text follows. It stays.
    pub(super) async fn is_at(&mut self, text: &str) -> bool {
        for (place, character) in text.chars().enumerate() {
            if self.peek_at(place).await != Some(character) {
                return false;
            }
        }
        true
    }

    pub(super) async fn next(&mut self) -> Read<char> {
        let character = self.peek().await.ok_or(NoCall)?;
        self.ahead.pop_front();
        if self.open.is_none() {
            self.held.push(character);
        }
        Ok(character)
    }

    /// Reads this text if it follows.
    pub(super) async fn skip(&mut self, text: &str) -> bool {
        let follows = self.is_at(text).await;
        for _ in text.chars().filter(|_| follows) {
            let _ = self.next().await;
        }
        follows
    }

    /// Reads one of these marks. `None` where something else follows, an error where the reply ends
    /// before that is known.
    pub(super) async fn choose(&mut self, marks: &[&str]) -> Read<Option<usize>> {
        let chosen = self.mark(marks).await;
        if chosen.is_none() {
            for mark in marks {
                self.ends_within(mark).await?;
            }
        }
        Ok(chosen)
    }

    async fn ends_within(&mut self, mark: &str) -> Read {
        for (place, character) in mark.chars().enumerate() {
            match self.peek_at(place).await {
                Some(same) if same == character => {}
                Some(_) => break,
                None => {
                    while self.next().await.is_ok() {}
                    return Err(NoCall);
                }
            }
        }
        Ok(())
    }

    pub(super) async fn expect(&mut self, mark: &str) -> Read {
        self.choose(&[mark]).await?.map(drop).ok_or(NoCall)
    }

    /// Reads the mark behind a call: from here on, nothing is part of it.
    pub(super) async fn close(&mut self, mark: &str) -> Read {
        self.expect(mark).await?;
        self.held.clear();
        Ok(())
    }

    /// Reads a word such as a name, and the white space around it.
    pub(super) async fn word(&mut self) -> String {
        self.space().await;
        let is_part = |c: char| !c.is_whitespace() && !"<>[]{}()`\"'=,;".contains(c);
        let word = self.while_is(is_part).await;
        self.space().await;
        word
    }

    /// Reads white space.
    pub(super) async fn space(&mut self) {
        self.while_is(char::is_whitespace).await;
    }

    pub(super) async fn while_is(&mut self, is: impl Fn(char) -> bool) -> String {
        let mut text = String::new();
        while let Some(character) = self.peek().await.filter(|c| is(*c)) {
            let _ = self.next().await;
            text.push(character);
        }
        text
    }

    /// Reads the text up to a mark, and the mark.
    pub(super) async fn until(&mut self, mark: &str) -> Read<String> {
        let mut text = String::new();
        while !self.skip(mark).await {
            text.push(self.next().await?);
        }
        Ok(text)
    }

    async fn mark(&mut self, marks: &[&str]) -> Option<usize> {
        for (place, mark) in marks.iter().enumerate() {
            if self.skip(mark).await {
                return Some(place);
            }
        }
        None
    }

    /// Reads text, which is what the reply says, up to one of these marks, and it. `None` where the
    /// reply is over.
    pub(super) async fn find(&mut self, marks: &[&str]) -> Option<usize> {
        loop {
            if let Some(mark) = self.mark(marks).await {
                return Some(mark);
            }
            let character = self.next().await.ok();
            self.held.clear();
            match character {
                Some(character) => self.speak(character),
                None => {
                    self.finish();
                    return None;
                }
            }
        }
    }

    /// Ends what began with a mark: where it was no call, what was read is text as it came.
    pub(super) async fn settle(&mut self, read: Read) {
        if self.open.is_some() && !self.closer.is_empty() && self.peek().await.is_some() {
            self.argue(self.closer);
        }
        (self.open, self.closer) = (None, "");
        let held = std::mem::take(&mut self.held);
        let called = std::mem::take(&mut self.called_since_mark);
        // The frame of a call that the reply's end cuts off says nothing.
        if read.is_err() && !(called && self.peek().await.is_none()) {
            held.chars().for_each(|character| self.speak(character));
        }
    }

    fn speak(&mut self, character: char) {
        self.gap.push(character);
        if !character.is_whitespace() {
            self.spoken_since_call = true;
            lock(&self.line).spoken.push_str(&std::mem::take(&mut self.gap));
        }
    }

    fn finish(&mut self) {
        if self.begun == 0 || self.spoken_since_call {
            lock(&self.line).spoken.push_str(&std::mem::take(&mut self.gap));
        }
    }

    /// Whether the request has a tool of this name.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.tool(name).is_some()
    }

    fn tool(&self, name: &str) -> Option<usize> {
        self.tools.iter().position(|tool| tool["function"]["name"] == *name)
    }

    /// The schema of a tool's arguments.
    pub(super) fn parameters(&self, name: &str) -> Read<Value> {
        let tool = self.tool(name).ok_or(NoCall)?;
        Ok(self.tools[tool]["function"]["parameters"].clone())
    }

    /// Begins a call of this tool; from here on there is no way back to text.
    pub(super) fn begin(&mut self, name: &str) -> Read {
        self.open = Some(self.tool(name).ok_or(NoCall)?);
        self.held.clear();
        self.gap.clear();
        (self.called_since_mark, self.spoken_since_call) = (true, false);
        let call = ToolCallDelta {
            index: self.begun,
            name: Some(name.to_owned()),
            ..ToolCallDelta::default()
        };
        self.begun += 1;
        lock(&self.line).calls.push(call);
        Ok(())
    }

    /// Adds to the arguments of the call that is open.
    pub(super) fn argue(&mut self, text: &str) {
        let Some(index) = self.begun.checked_sub(1) else { return };
        let mut line = lock(&self.line);
        match line.calls.last_mut().filter(|call| call.index == index) {
            Some(call) => call.arguments.push_str(text),
            None => line.calls.push(ToolCallDelta {
                index,
                arguments: text.to_owned(),
                ..ToolCallDelta::default()
            }),
        }
    }

    /// Ends the call that is open: what was read is part of it, what follows is not.
    pub(super) fn end(&mut self) {
        (self.open, self.closer) = (None, "");
        self.held.clear();
    }

    /// Begins a call whose arguments come one by one. Gives their schema.
    pub(super) fn begin_object(&mut self, name: &str) -> Read<Value> {
        self.begin(name)?;
        self.argue("{");
        self.closer = "}";
        self.parameters(name)
    }

    /// Makes a call that is known as a whole.
    pub(super) fn call(&mut self, name: &str, arguments: &str) -> Read {
        self.begin(name)?;
        self.argue(arguments);
        self.end();
        Ok(())
    }
}
