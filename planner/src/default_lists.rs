//! The default size lists of other stacks, by their published rules, up to any maximum.

use serde::Serialize;

use crate::capture_sizes::CaptureSizes;

/// A stack with a published rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stack {
    /// vLLM: 1, 2, 4, then steps of 8 below 256 and of 16 from there, for tokens and decodes.
    Vllm,
    /// SGLang: a decode rule and a prefill token rule, both with growing steps.
    Sglang,
    /// TensorRT-LLM: powers of two and steps of 256 for tokens, 1, 2, 4, steps of 8 and of 64 for
    /// decodes (padding on).
    TensorrtLlm,
    /// ATOM: 1, 2, 4, 8, then steps of 16.
    Atom,
}

/// Sizes from the first number to the second, in steps of the third.
type Run = (u32, u32, u32);

struct Rule {
    name: &'static str,
    tokens: &'static [Run],
    /// The largest token size that is captured unless told otherwise.
    token_cap: u32,
    decode: &'static [Run],
    /// For decodes of more than one token.
    speculative: &'static [Run],
}

const VLLM: &[Run] = &[(1, 2, 1), (4, 4, 1), (8, 248, 8), (256, u32::MAX, 16)];
const SGLANG_DECODE: &[Run] =
    &[(1, 2, 1), (4, 12, 4), (16, 256, 8), (272, 511, 16), (512, u32::MAX, 32)];
const SGLANG_SPECULATIVE: &[Run] =
    &[(1, 8, 1), (10, 32, 2), (40, 64, 4), (72, 256, 8), (272, u32::MAX, 16)];
const SGLANG_TOKENS: &[Run] = &[
    (4, 32, 4),
    (48, 256, 16),
    (288, 512, 32),
    (576, 1024, 64),
    (1280, 4096, 256),
    (4608, u32::MAX, 512),
];
const TENSORRT_LLM_DECODE: &[Run] = &[(1, 2, 1), (4, 4, 1), (8, 128, 8), (192, u32::MAX, 64)];
const TENSORRT_LLM_TOKENS: &[Run] =
    &[(1, 2, 1), (4, 8, 4), (16, 32, 16), (64, 64, 1), (128, 128, 1), (256, u32::MAX, 256)];
const ATOM: &[Run] = &[(1, 2, 1), (4, 8, 4), (16, 512, 16), (528, u32::MAX, 16)];

impl Stack {
    /// Every stack, in the order in which reports list them.
    pub const ALL: [Stack; 4] = [Stack::Vllm, Stack::Sglang, Stack::TensorrtLlm, Stack::Atom];

    fn rule(self) -> Rule {
        let rule = |name, token_cap, tokens, decode, speculative| Rule {
            name,
            tokens,
            token_cap,
            decode,
            speculative,
        };
        match self {
            Stack::Vllm => rule("vLLM", 512, VLLM, VLLM, VLLM),
            Stack::Sglang => rule("SGLang", 2048, SGLANG_TOKENS, SGLANG_DECODE, SGLANG_SPECULATIVE),
            Stack::TensorrtLlm => {
                let decode = TENSORRT_LLM_DECODE;
                rule("TensorRT-LLM", 3072, TENSORRT_LLM_TOKENS, decode, decode)
            }
            Stack::Atom => rule("ATOM", 512, ATOM, ATOM, ATOM),
        }
    }

    /// How the stack writes itself: `vLLM`.
    pub fn name(self) -> &'static str {
        self.rule().name
    }

    /// Both lists up to the maxima, each of which is appended where its rule misses it; empty for a
    /// maximum of 0.
    pub fn lists(self, token_maximum: u32, decode_maximum: u32, query_length: u32) -> CaptureSizes {
        let rule = self.rule();
        let decode = if query_length > 1 { rule.speculative } else { rule.decode };
        CaptureSizes {
            capture_num_tokens: up_to(rule.tokens, token_maximum),
            decode_batch_sizes: up_to(decode, decode_maximum),
        }
    }

    /// Both lists as shipped: the token list ends at the stack's own cap.
    pub fn shipped_lists(
        self,
        token_maximum: u32,
        decode_maximum: u32,
        query_length: u32,
    ) -> CaptureSizes {
        self.lists(token_maximum.min(self.rule().token_cap), decode_maximum, query_length)
    }
}

fn up_to(runs: &[Run], maximum: u32) -> Vec<u32> {
    let mut sizes = Vec::new();
    for (first, last, step) in runs {
        let mut size = *first;
        while size <= (*last).min(maximum) {
            sizes.push(size);
            size = size.saturating_add(*step);
        }
    }
    if maximum > 0 && sizes.last() != Some(&maximum) {
        sizes.push(maximum);
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_as_published() {
        let vllm = Stack::Vllm.lists(512, 0, 1).capture_num_tokens;
        assert_eq!(vllm.len(), 51);
        assert_eq!(vllm[..6], [1, 2, 4, 8, 16, 24]);
        assert_eq!(vllm[33..37], [248, 256, 272, 288]);
        assert_eq!(Stack::Vllm.lists(0, 100, 1).decode_batch_sizes.last(), Some(&100));

        let sglang = Stack::Sglang.lists(0, 600, 1).decode_batch_sizes;
        assert_eq!(sglang[..7], [1, 2, 4, 8, 12, 16, 24]);
        assert_eq!(sglang[sglang.len() - 6..], [480, 496, 512, 544, 576, 600]);
        assert_eq!(
            Stack::Sglang.lists(0, 12, 4).decode_batch_sizes,
            [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]
        );
        let tokens = Stack::Sglang.lists(8192, 0, 1).capture_num_tokens;
        assert_eq!(tokens[..9], [4, 8, 12, 16, 20, 24, 28, 32, 48]);
        assert_eq!(tokens[tokens.len() - 9..tokens.len() - 6], [4096, 4608, 5120]);

        assert_eq!(
            Stack::TensorrtLlm.lists(3072, 0, 1).capture_num_tokens,
            [
                1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1280, 1536, 1792, 2048, 2304,
                2560, 2816, 3072
            ]
        );
        let decode = Stack::TensorrtLlm.lists(0, 256, 1).decode_batch_sizes;
        assert_eq!(decode[..5], [1, 2, 4, 8, 16]);
        assert_eq!(decode[decode.len() - 4..], [120, 128, 192, 256]);

        let atom = Stack::Atom.lists(512, 0, 1).capture_num_tokens;
        assert_eq!(atom[..6], [1, 2, 4, 8, 16, 32]);
        assert_eq!(atom.len(), 36);
    }

    #[test]
    fn lists_ascend_and_end_at_the_maximum() {
        for stack in Stack::ALL {
            for maximum in [1, 2, 3, 7, 100, 255, 256, 257, 513, 3000, 8192] {
                for list in [
                    stack.lists(maximum, 0, 1).capture_num_tokens,
                    stack.lists(0, maximum, 3).decode_batch_sizes,
                ] {
                    assert!(list.windows(2).all(|pair| pair[0] < pair[1]), "{stack:?} {list:?}");
                    assert_eq!(list.last(), Some(&maximum));
                }
            }
            assert_eq!(stack.lists(0, 0, 1), CaptureSizes::default());
        }
    }
}
