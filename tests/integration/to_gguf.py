"""Writes an embedded model as a GGUF file, so that llama.cpp's servers can serve it: `pip install gguf`.

python -m tests.integration.to_gguf target target.gguf
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaffolding_ext.errors import ConfigError, MissingDependencyError, ScaffoldingExtError
from scaffolding_ext.tinylm.embedded import model_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# llama.cpp knows pre-tokenizers by name. This one sets digits and words apart as ours does, but not the signs that ours
# isolates too: the same ids come out as long as no merge reaches over such a sign, or joins white space.
_PRE_TOKENIZER = "smollm"
_ISOLATED = frozenset("=+*,<>)-")
_WHITE_SPACE = "ĠĊĉč"  # blank, newline, tab and carriage return, as byte-level BPE writes them
_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4  # types of tokens, as GGUF numbers them


def write_gguf(model: str, path: Path, bos: str | None = None) -> None:
    """Write the file, in 32-bit floats: the very weights that HuggingFaceWorker computes with.

    Args:
        model: `tinylm/NAME`, or `NAME` alone.
        path: Where it goes; a file that is there is replaced.
        bos: A token that servers put before every text, such as `<|pad|>`; None for none, as the model was trained.

    Raises:
        MissingDependencyError: gguf is not installed.
        ConfigError: No embedded model has that name.
        ConfigError: llama.cpp would split texts otherwise than the model's tokenizer, or `bos` is no token.
    """
    try:
        import gguf
    except ImportError as error:
        raise MissingDependencyError("gguf", "dev") from error
    folder = Path(model_folder(model))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"tinylm-{folder.name}")
    _add_shape(writer, config)
    _add_tokenizer(writer, config, folder, bos)
    for name, values in _tensors(folder, config):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_shape(writer: Any, config: dict[str, Any]) -> None:
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_file_type(0)  # all in 32-bit floats


def _add_tokenizer(writer: Any, config: dict[str, Any], folder: Path, bos: str | None) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    ids: dict[str, int] = tokenizer["model"]["vocab"]
    merges = [tuple(merge) for merge in tokenizer["model"]["merges"]]
    astray = [merge for merge in merges if crosses(merge)]
    if astray:
        raise ConfigError(
            f"llama.cpp would split texts otherwise than {folder / 'tokenizer.json'}: its merge {' '.join(astray[0])} "
            f"reaches over what llama.cpp's pre-tokenizer {_PRE_TOKENIZER!r} does not set apart"
        )
    if bos is not None and bos not in ids:
        raise ConfigError(f"is {bos!r}, which is no token of {folder.name}; give one, such as '<|pad|>'", "bos")
    types = [_NORMAL] * len(ids)
    for added in tokenizer["added_tokens"]:  # what is not special stays in decoded text
        types[added["id"]] = _CONTROL if added["special"] else _USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_PRE_TOKENIZER)
    writer.add_token_list(sorted(ids, key=lambda token: ids[token]))
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_pad_token_id(config["pad_token_id"])
    # Without any, llama.cpp takes token 11 of a byte-level vocabulary for it, which is a sign like any other here.
    writer.add_bos_token_id(config["pad_token_id"] if bos is None else ids[bos])
    writer.add_add_bos_token(bos is not None)
    writer.add_add_space_prefix(False)
    writer.add_chat_template((folder / "chat_template.jinja").read_text(encoding="utf-8"))


def crosses(merge: tuple[str, ...]) -> bool:
    joined = "".join(merge)
    return bool(_ISOLATED & {*joined}) or (len(joined) > 1 and not joined.strip(_WHITE_SPACE))


def _tensors(folder: Path, config: dict[str, Any]) -> list[tuple[str, NDArray[np.float32]]]:
    """The weights under llama.cpp's names; the output matrix is left out, since it is that of the embeddings."""
    import numpy as np
    from safetensors.numpy import load_file

    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
    parts = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for layer in range(config["num_hidden_layers"]):
        names |= {f"model.layers.{layer}.{part}": f"blk.{layer}.{name}" for part, name in parts.items()}
    weights = load_file(folder / "model.safetensors")
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = []
    for theirs, ours in names.items():
        values = weights[f"{theirs}.weight"].astype(np.float32)
        num_heads = heads.get(ours.rpartition(".")[2])
        tensors.append((f"{ours}.weight", values if num_heads is None else _interleaved(values, num_heads)))
    return tensors


def _interleaved(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows for llama.cpp's rotary embedding, which turns neighbours, where transformers turns the halves of a head."""
    halves = values.reshape(num_heads, 2, -1, values.shape[1])
    rows: NDArray[np.float32] = halves.swapaxes(1, 2).reshape(values.shape)
    return rows


@click.command(epilog="Example: python -m tests.integration.to_gguf target target.gguf")
@click.argument("model")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--bos", help="Token that servers put before every text, such as <|pad|>.")
def main(model: str, path: Path, bos: str | None) -> None:
    """Write the embedded MODEL (target or draft) as a GGUF file at PATH."""
    try:
        write_gguf(model, path, bos)
    except ScaffoldingExtError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
