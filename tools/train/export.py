"""Writes the trained network as a GGUF file: llama architecture, Q8_0 matrices, byte-level BPE, ChatML."""

import json

import gguf
import numpy as np

import tokenizer as chat_tokenizer

NAME = "uma-tiny"


def _pairs(weight, head_width):
    """Reorders the rows of q or k from halves (model.rotate) to the neighbouring pairs of llama's rotation."""
    heads = weight.shape[0] // head_width
    return weight.reshape(heads, 2, head_width // 2, -1).swapaxes(1, 2).reshape(weight.shape)


def _vocabulary(writer, tokenizer):
    vocabulary = sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    assert [token_id for _, token_id in vocabulary] == list(range(chat_tokenizer.VOCABULARY_SIZE))
    texts = [text for text, _ in vocabulary]
    control = set(chat_tokenizer.CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(chat_tokenizer.PRE_TOKENIZER)
    writer.add_token_list(texts)
    writer.add_token_types([gguf.TokenType.CONTROL if text in control else gguf.TokenType.NORMAL for text in texts])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    end = tokenizer.token_to_id(chat_tokenizer.END)
    writer.add_eos_token_id(end)
    writer.add_eot_token_id(end)
    writer.add_pad_token_id(end)
    writer.add_add_bos_token(False)
    writer.add_chat_template(chat_tokenizer.CHAT_TEMPLATE)


def write(network, tokenizer, path):
    """Writes to a temporary name beside `path`, then renames."""
    shape = network.shape
    temporary = path.with_suffix(".new")
    writer = gguf.GGUFWriter(temporary, "llama")
    writer.add_name(NAME)
    writer.add_description("The model that ships with uma-serve: made by tools/train, see docs/DEFAULT_MODEL.md")
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_vocab_size(shape.vocabulary)
    _vocabulary(writer, tokenizer)

    weights = {name: parameter.detach().numpy() for name, parameter in network.named_parameters()}

    def add(name, weight):
        if weight.ndim == 1:
            writer.add_tensor(name, weight.astype(np.float32))
        else:
            data = gguf.quants.quantize(np.ascontiguousarray(weight), gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    add("token_embd.weight", weights["embedding.weight"])
    add("output_norm.weight", weights["norm.weight"])
    kv_width = shape.kv_heads * shape.head_width
    for at in range(shape.layers):
        layer = {name.removeprefix(f"layers.{at}."): value for name, value in weights.items() if name.startswith(f"layers.{at}.")}
        q, k, v = np.split(layer["qkv.weight"], [shape.width, shape.width + kv_width])
        gate, up = np.split(layer["gate_up.weight"], 2)
        add(f"blk.{at}.attn_norm.weight", layer["attention_norm.weight"])
        add(f"blk.{at}.attn_q.weight", _pairs(q, shape.head_width))
        add(f"blk.{at}.attn_k.weight", _pairs(k, shape.head_width))
        add(f"blk.{at}.attn_v.weight", v)
        add(f"blk.{at}.attn_output.weight", layer["attention_output.weight"])
        add(f"blk.{at}.ffn_norm.weight", layer["feed_forward_norm.weight"])
        add(f"blk.{at}.ffn_gate.weight", gate)
        add(f"blk.{at}.ffn_up.weight", up)
        add(f"blk.{at}.ffn_down.weight", layer["down.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    temporary.rename(path)
