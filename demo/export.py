"""From a checkpoint to demo/kvasir-demo.gguf and the reference logits of its tests.

    export.py --gguf-py DIR --llama-quantize BIN --checkpoint FILE --tokenizer FILE --gguf OUT --reference DIR

writes the checkpoint as an F32 GGUF next to OUT, quantises it to Q4_K_M, and computes the reference logits from the
quantised file. Any of the three can be had alone: without --llama-quantize OUT is the F32 file; without --checkpoint
OUT must exist and only the reference is made.
"""

import argparse
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from model import Config, Model
from tokenizer import Tokenizer

ARCHITECTURE = "qwen35moe"
CONTEXT_LENGTH = 2048

# Q4_K_M gives the down matrices of some blocks Q6_K. In a model this small that shows in the size, so only block 0
# keeps it, and the file stays under 20 MB with two weight types among its experts.
TENSOR_TYPES = [r"blk\.[3678]\.ffn_down_exps=q4_k"]

# A chat is laid out as its messages' text, one after the other: the model continues text, it knows no roles.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

REFERENCE_PROMPT = """Genesis 1

In the beginning God created the heaven and the earth.
And the earth was without form, and void; and darkness was upon the face of the deep. And the Spirit of God moved upon
 the face of the waters. And God said unto Moses, Speak unto the children of Israel.
"""
REFERENCE_TOKENS = 64


def file_tensors(model: Model) -> dict[str, np.ndarray]:
    """The model's parameters under their GGUF names, float32."""
    tensors: dict[str, np.ndarray] = {}
    for name, value in model.state_dict().items():
        if name.endswith("ssm_a_log"):
            name, value = name.removesuffix("_log"), -value.exp()
        tensors[name] = value.float().contiguous().numpy()
    return tensors


def write_gguf(gguf, model: Model, tokenizer: Tokenizer, path: Path) -> None:
    """Writes an F32 GGUF. `gguf` is the gguf-py module."""
    c = model.config
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_name("Kvasir demo")
    writer.add_description("A small qwen35moe model trained on the King James Bible")
    writer.add_license("The text is in the public domain")
    writer.add_context_length(CONTEXT_LENGTH)
    writer.add_block_count(c.n_layer + c.n_layer_nextn)
    if c.n_layer_nextn:
        writer.add_nextn_predict_layers(c.n_layer_nextn)
    writer.add_embedding_length(c.n_embd)
    writer.add_feed_forward_length(c.n_ff_expert)
    writer.add_head_count(c.n_head)
    writer.add_head_count_kv(c.n_head_kv)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_layer_norm_rms_eps(c.norm_eps)
    writer.add_rope_dimension_count(c.rope_dim)
    writer.add_rope_dimension_sections(list(c.rope_sections))
    writer.add_rope_freq_base(c.rope_base)
    writer.add_expert_count(c.n_expert)
    writer.add_expert_used_count(c.n_expert_used)
    writer.add_expert_feed_forward_length(c.n_ff_expert)
    writer.add_expert_shared_feed_forward_length(c.n_ff_shared)
    writer.add_ssm_conv_kernel(c.conv_kernel)
    writer.add_ssm_inner_size(c.value_width)
    writer.add_ssm_state_size(c.state_dim)
    writer.add_ssm_time_step_rank(c.n_value_heads)
    writer.add_ssm_group_count(c.n_key_heads)
    writer.add_full_attention_interval(c.full_attention_interval)

    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(tokenizer.tokens)
    normal, control = int(gguf.TokenType.NORMAL), int(gguf.TokenType.CONTROL)
    writer.add_token_types([control if index == tokenizer.end_of_text else normal for index in range(len(tokenizer))])
    writer.add_token_merges([f"{left} {right}" for left, right in tokenizer.merges])
    writer.add_bos_token_id(tokenizer.end_of_text)
    writer.add_eos_token_id(tokenizer.end_of_text)
    writer.add_pad_token_id(tokenizer.end_of_text)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)

    for name, value in file_tensors(model).items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_gguf(gguf, path: Path) -> tuple[Model, Tokenizer]:
    """The model and vocabulary of a file this script wrote, its tensors dequantised to float32."""
    reader = gguf.GGUFReader(path)

    def value(key: str):
        field = reader.get_field(key if key.startswith("tokenizer") else f"{ARCHITECTURE}.{key}")
        if field is None:
            raise ValueError(f"{path}: no key {key}; was the file written by export.py?")
        return field.contents()

    nextn = 1 if reader.get_field(f"{ARCHITECTURE}.nextn_predict_layers") is not None else 0
    config = Config(
        n_vocab=len(value("tokenizer.ggml.tokens")),
        n_embd=value("embedding_length"),
        n_layer=value("block_count") - nextn,
        n_layer_nextn=nextn,
        full_attention_interval=value("full_attention_interval"),
        n_head=value("attention.head_count"),
        n_head_kv=value("attention.head_count_kv"),
        head_dim=value("attention.key_length"),
        rope_dim=value("rope.dimension_count"),
        rope_sections=tuple(value("rope.dimension_sections")),
        rope_base=value("rope.freq_base"),
        n_expert=value("expert_count"),
        n_expert_used=value("expert_used_count"),
        n_ff_expert=value("expert_feed_forward_length"),
        n_ff_shared=value("expert_shared_feed_forward_length"),
        conv_kernel=value("ssm.conv_kernel"),
        state_dim=value("ssm.state_size"),
        n_key_heads=value("ssm.group_count"),
        n_value_heads=value("ssm.time_step_rank"),
        norm_eps=value("attention.layer_norm_rms_epsilon"),
    )
    model = Model(config)
    state = model.state_dict()
    for tensor in reader.tensors:
        data = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        name = tensor.name
        if name.endswith("ssm_a"):
            name, data = name + "_log", (-data).log()
        state[name] = data.reshape(state[name].shape)
    model.load_state_dict(state)
    merges = [(left, right) for left, right in (merge.split(" ") for merge in value("tokenizer.ggml.merges"))]
    return model, Tokenizer(merges)


def write_reference(gguf, path: Path, directory: Path) -> None:
    """reference.json and reference-logits.f32 for the file at `path`."""
    model, tokenizer = read_gguf(gguf, path)
    tokens = tokenizer.encode(REFERENCE_PROMPT)[:REFERENCE_TOKENS]
    with torch.no_grad():
        logits = model(torch.tensor([tokens]))[0]
    directory.mkdir(parents=True, exist_ok=True)
    logits.numpy().astype("<f4").tofile(directory / "reference-logits.f32")
    description = {
        "prompt": tokenizer.decode(tokens),
        "tokens": tokens,
        "n_vocab": model.config.n_vocab,
        "model_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    (directory / "reference.json").write_text(json.dumps(description, indent=1) + "\n")


def expert_share(gguf, path: Path) -> float:
    """The routed experts' part of the tensor bytes in the file."""
    tensors = gguf.GGUFReader(path).tensors
    return sum(t.n_bytes for t in tensors if "_exps." in t.name) / sum(t.n_bytes for t in tensors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gguf-py", type=Path, required=True, help="the gguf-py directory of a llama.cpp checkout")
    parser.add_argument("--gguf", type=Path, required=True, help="the model file to write, or to read for --reference")
    parser.add_argument("--checkpoint", type=Path, help="what train.py saved")
    parser.add_argument("--tokenizer", type=Path, help="what train.py saved; required with --checkpoint")
    parser.add_argument("--llama-quantize", type=Path, help="llama.cpp's llama-quantize")
    parser.add_argument("--reference", type=Path, help="the directory for the reference logits")
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.gguf_py))
    import gguf

    if arguments.checkpoint:
        if not arguments.tokenizer:
            parser.error("--checkpoint needs --tokenizer")
        checkpoint = torch.load(arguments.checkpoint, map_location="cpu")
        model = Model(Config(**checkpoint["config"]))
        model.load_state_dict(checkpoint["model"])
        full = arguments.gguf.with_suffix(".f32.gguf") if arguments.llama_quantize else arguments.gguf
        write_gguf(gguf, model, Tokenizer.load(arguments.tokenizer), full)
        if arguments.llama_quantize:
            overrides = [word for override in TENSOR_TYPES for word in ("--tensor-type", override)]
            command = [arguments.llama_quantize, *overrides, full, arguments.gguf, "Q4_K_M", "2"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            full.unlink()
        size = arguments.gguf.stat().st_size
        print(f"{arguments.gguf}: {size:,} bytes, {expert_share(gguf, arguments.gguf):.1%} of them routed experts")
    if arguments.reference:
        write_reference(gguf, arguments.gguf, arguments.reference)
        print(f"{arguments.reference}: reference logits written")


if __name__ == "__main__":
    main()
