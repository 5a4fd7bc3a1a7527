"""tiny-qwen3 in plain PyTorch: what `examples/from_pytorch.rs` is ported from, part by part.

    pip install torch safetensors tokenizers && python examples/from_pytorch.py

Prints what `cargo run --example from_pytorch` prints.
"""

import pathlib

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional as F

FOLDER = pathlib.Path(__file__).parent / "tiny-qwen3"
VOCAB, HIDDEN, INNER, LAYERS = 2048, 256, 768, 6
HEADS, KV_HEADS, DIM = 4, 2, 64
EPS, THETA = 1e-6, 10_000.0


def rope(x, positions):
    frequencies = THETA ** (-torch.arange(0, DIM, 2) / DIM)
    angles = positions[:, None, None] * frequencies
    left, right = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(HIDDEN, HEADS * DIM, bias=False)
        self.k_proj = nn.Linear(HIDDEN, KV_HEADS * DIM, bias=False)
        self.v_proj = nn.Linear(HIDDEN, KV_HEADS * DIM, bias=False)
        self.o_proj = nn.Linear(HEADS * DIM, HIDDEN, bias=False)
        self.q_norm = nn.RMSNorm(DIM, EPS)
        self.k_norm = nn.RMSNorm(DIM, EPS)

    def forward(self, h, positions):
        q = self.q_norm(self.q_proj(h).view(-1, HEADS, DIM))
        k = self.k_norm(self.k_proj(h).view(-1, KV_HEADS, DIM))
        v = self.v_proj(h).view(-1, KV_HEADS, DIM)
        q, k = rope(q, positions), rope(k, positions)
        q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed[0].transpose(0, 1).flatten(1))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, INNER, bias=False)
        self.up_proj = nn.Linear(HIDDEN, INNER, bias=False)
        self.down_proj = nn.Linear(INNER, HIDDEN, bias=False)

    def forward(self, h):
        return self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), Mlp()
        self.input_layernorm = nn.RMSNorm(HIDDEN, EPS)
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, EPS)

    def forward(self, x, positions):
        x = x + self.self_attn(self.input_layernorm(x), positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, EPS)

    def forward(self, ids, positions):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, positions)
        x = self.norm(x[-1:])
        return x @ self.embed_tokens.weight.T


@torch.inference_mode()
def main():
    weights = load_file(FOLDER / "model.safetensors")
    model = Decoder()
    model.load_state_dict({name.removeprefix("model."): w.float() for name, w in weights.items()})
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    ids = tokenizer.encode("def __init__(self").ids
    for _ in range(24):
        logits = model(torch.tensor(ids), torch.arange(len(ids)))
        ids.append(int(logits.argmax()))
    print(tokenizer.decode(ids))


if __name__ == "__main__":
    main()
