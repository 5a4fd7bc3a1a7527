//! The flags of `piecewise bench serve`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;

/// Measure a server of OpenAI's interface by its clients' clock: first tokens, the time of each further
/// one, throughput, and how many requests keep to bounds.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  piecewise bench serve --url http://127.0.0.1:8000 --input-tokens 512 --output-tokens 128 --requests 200
  piecewise bench serve --dataset sharegpt.json --chat --rate 4 --goodput ttft=500,tpot=50
  piecewise bench serve --dataset prompts.jsonl --concurrency 32 --json

A dataset is JSON lines of objects with `prompt` (a text or token ids) or `messages`, and `max_tokens`
where a line has its own; or a JSON array of ShareGPT's conversations, whose first turn is asked and
whose second says how long an answer is.
Exit status: 0 some request has its answer, 1 none has.")]
pub(crate) struct ServeBenchArgs {
    /// Where the server is.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8000")]
    pub(super) url: String,
    /// The model to ask for [default: the first that the server lists].
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,
    /// Ask for replies of a chat; without it, for completions.
    #[arg(long)]
    pub(super) chat: bool,
    /// The environment variable that has the server's key.
    #[arg(long, value_name = "NAME", default_value = "OPENAI_API_KEY")]
    pub(super) api_key_variable: String,
    /// Prompts to ask, JSON lines or ShareGPT's; without it they are made up.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["input_tokens", "ids_below"])]
    pub(super) dataset: Option<PathBuf>,
    /// Tokens of a made-up prompt, about, since it is words; of a range each is as likely.
    #[arg(long, value_name = "N|N-M", default_value = "512")]
    pub(super) input_tokens: Range,
    /// The most tokens of an answer, where the dataset does not say.
    #[arg(long, value_name = "N|N-M", default_value = "128")]
    pub(super) output_tokens: Range,
    /// Make prompts of token ids below this, exactly as many as are asked for, where a server takes ids.
    #[arg(long, value_name = "N", conflicts_with = "chat")]
    pub(super) ids_below: Option<u32>,
    /// How many requests; a dataset begins again where it has fewer [default: 100, or the dataset's].
    #[arg(long, value_name = "N")]
    pub(super) requests: Option<NonZeroUsize>,
    /// Requests a second, at random times as independent clients come (Poisson); without it, all come at
    /// once, or as --concurrency lets them.
    #[arg(long, value_name = "R", value_parser = positive)]
    pub(super) rate: Option<f64>,
    /// The most requests on their way at a time; what comes earlier waits at the client.
    #[arg(long, value_name = "N")]
    pub(super) concurrency: Option<NonZeroUsize>,
    /// Requests before those that are measured.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) warmup: usize,
    /// Have answers be as long as they may, where a server knows the field `ignore_eos`.
    #[arg(long)]
    pub(super) ignore_eos: bool,
    /// 0 takes the likeliest token.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(super) temperature: f64,
    /// More fields of each request, as a JSON object.
    #[arg(long, value_name = "JSON", value_parser = object)]
    pub(super) extra_body: Option<Object>,
    /// Of what is made up and of when requests come.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(super) seed: u64,
    /// Count the requests that keep to these bounds, in milliseconds: of the first token, of the mean of the
    /// further ones, and of the whole answer.
    #[arg(long, value_name = "ttft=MS,tpot=MS,e2e=MS", default_value = "")]
    pub(super) goodput: Bounds,
    /// The percentiles of each time.
    #[arg(long, value_name = "P,..", value_delimiter = ',', default_values_t = [50.0, 90.0, 99.0], value_parser = percent)]
    pub(super) percentiles: Vec<f64>,
    /// Seconds without a byte of an answer after which it counts as failed.
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0, value_parser = positive)]
    pub(super) timeout: f64,
    /// Print JSON, with vLLM's names.
    #[arg(long)]
    pub(super) json: bool,
    /// Write a JSON object for each request to this file.
    #[arg(long, value_name = "FILE")]
    pub(super) out: Option<PathBuf>,
}

type Object = serde_json::Map<String, serde_json::Value>;

fn object(text: &str) -> Result<Object, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))
}

fn positive(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| *number > 0.0 && number.is_finite());
    number.ok_or_else(|| "must be a number above 0".to_owned())
}

fn percent(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "must be a number from 0 to 100".to_owned())
}

/// Numbers of tokens from one to another, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub(super) least: u64,
    pub(super) most: u64,
}

impl FromStr for Range {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        let number =
            |part: &str| part.trim().parse::<u64>().ok().filter(|n| (1..=1 << 24).contains(n));
        match (number(least), number(most)) {
            (Some(least), Some(most)) if least <= most => Ok(Self { least, most }),
            _ => {
                Err("write a number from 1 on, or two with `-` between them, such as 64-512"
                    .to_owned())
            }
        }
    }
}

/// What a request keeps to that counts as good; milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, serde::Serialize)]
pub(super) struct Bounds {
    pub(super) ttft: Option<f64>,
    pub(super) tpot: Option<f64>,
    pub(super) e2e: Option<f64>,
}

impl FromStr for Bounds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut bounds = Self::default();
        for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once(['=', ':']).unwrap_or((part, ""));
            let bound = match name {
                "ttft" => &mut bounds.ttft,
                "tpot" => &mut bounds.tpot,
                "e2e" | "e2el" => &mut bounds.e2e,
                _ => {
                    return Err(format!("there is no time `{name}`; there are ttft, tpot and e2e"));
                }
            };
            *bound = Some(positive(value).map_err(|why| format!("{name} {why} of milliseconds"))?);
        }
        Ok(bounds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_bounds_are_read_as_they_are_written() {
        assert_eq!("64-512".parse(), Ok(Range { least: 64, most: 512 }));
        assert_eq!("7".parse(), Ok(Range { least: 7, most: 7 }));
        for bad in ["0", "9-3", "a", "", "-4", "1-99999999999"] {
            assert!(bad.parse::<Range>().is_err(), "{bad}");
        }
        let bounds = Bounds { ttft: Some(200.0), tpot: None, e2e: Some(2000.0) };
        assert_eq!("ttft=200,e2e=2000".parse(), Ok(bounds));
        assert_eq!("ttft:200 e2el:2000".parse(), Ok(bounds), "as vLLM writes them");
        assert_eq!("".parse(), Ok(Bounds::default()));
        for bad in ["ttft", "ttft=0", "itl=4", "tpot=fast"] {
            assert!(bad.parse::<Bounds>().is_err(), "{bad}");
        }
    }
}
