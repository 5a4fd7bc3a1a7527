"""Makes `model/`: random weights and a tokenizer that has a token for each byte."""

import json
import pathlib
import random
import struct

FOLDER = pathlib.Path(__file__).resolve().parent / "model"
CONFIG = json.loads((FOLDER / "config.json").read_text())
HIDDEN, VOCAB = CONFIG["hidden_size"], CONFIG["vocab_size"]
SHAPES = {"embedding": [VOCAB, HIDDEN], "norm": [HIDDEN]}
for layer in range(CONFIG["num_hidden_layers"]):
    gated = [] if layer % 3 == 2 else ["gate"]
    shapes = {name: [HIDDEN, HIDDEN] for name in ["q", "k", "v", "out", *gated]}
    shapes |= {"norm": [HIDDEN], "mlp_norm": [HIDDEN], "up": [2 * HIDDEN, HIDDEN], "down": [HIDDEN, 2 * HIDDEN]}
    SHAPES |= {f"layers.{layer}.{name}": shape for name, shape in shapes.items()}


def weights():
    """The bytes of a file of safetensors, with weights in bf16."""
    numbers, header, data = random.Random(5), {"__metadata__": {"format": "pt"}}, bytearray()
    for name, shape in SHAPES.items():
        begin = len(data)
        for _ in range(shape[0] * (shape[1] if len(shape) > 1 else 1)):
            number = 1.0 if len(shape) == 1 else numbers.gauss(0.0, 0.2)
            data += struct.pack("<f", number)[2:]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def tokenizer():
    """Bytes by the characters that GPT-2's tokenizer has for them; no text has the last one, which ends texts."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    vocab = {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}
    vocab = {text: id for text, id in vocab.items() if id != CONFIG["eos_token_id"]}
    end = {"id": CONFIG["eos_token_id"], "content": "<end>", "special": True}
    end |= dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": dict(sorted(vocab.items(), key=lambda entry: entry[1])), "merges": []}
    return {"version": "1.0", "added_tokens": [end], "pre_tokenizer": level, "decoder": level, "model": model}


(FOLDER / "model.safetensors").write_bytes(weights())
(FOLDER / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False))
template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
(FOLDER / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}) + "\n")
