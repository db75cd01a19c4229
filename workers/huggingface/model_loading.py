"""Load a causal LM with its tokenizer, or take a loaded one; their errors become errors of the arguments."""

from __future__ import annotations

import copy
import os
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError, MissingDependencyError, ScaffoldingExtError
from scaffolding_ext.prompts.model_files import config_of, how_to_load
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.workers.huggingface.engine_request import Processor
from scaffolding_ext.workers.shared.sampling_defaults import SamplingDefaults

_LEAST = {
    **dict.fromkeys(("threads", "max_batch_size", "max_seq_len", "prefill_chunk", "kv_cache_bytes"), 1),
    **dict.fromkeys(("prefix_cache_bytes", "seed"), 0),
    "tokens_per_block": 16,
}  # of the arguments that are whole numbers
_IN_LIST = re.compile(r"(.*?\blayers|.*?\bh|.*?\bblocks)\.(\d+)\.")  # a layer's index in its list
_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})  # types of weights in safetensors files
_MOST = {"threads": max(256, os.cpu_count() or 1), "max_batch_size": 65_536}  # no machine has more
_QUANTISED = (
    "choose the checkpoint in bfloat16, or serve it with TensorRT-LLM or vLLM and use --base_url (docs/servers.md)"
)
_MEANINGS = {  # of a sign in an error of transformers
    "trust_remote_code": "it needs Python code from its repository: read it, and set trust_remote_code if it may run",
    "ignore_mismatched_sizes": f"its weights have other sizes than its config.json says; if quantised, {_QUANTISED}",
    "SafetensorError": "its weights cannot be read, and the download may have been cut off",
}
_UNSERVED = (  # fields of a generation config that change texts
    *("num_beams", "penalty_alpha", "dola_layers", "guidance_scale", "watermarking_config", "force_words_ids"),
    *("constraints", "forced_bos_token_id", "forced_eos_token_id", "stop_strings", "token_healing"),
)
_UNSERVED_SAMPLING = ("typical_p", "epsilon_cutoff", "eta_cutoff", "top_h")  # greedy decoding ignores them
_OFF_AT_ONE = ("num_beams", "guidance_scale", "typical_p")


class LoadedModel(NamedTuple):
    """A model that can be run."""

    name: str  # the given name
    network: Any  # the causal LM, on its device, in evaluation mode, with the attention of this package
    tokenizer: Any  # its tokenizer, of transformers
    end_ids: frozenset[int]  # Token ids that end a text
    defaults: SamplingDefaults  # its sampling fields

    def processors(self, prompt_len: int) -> tuple[Processor, ...]:
        """Make transformers' processors of a request: the penalties and bans of the model's generation config."""
        import torch

        config = copy.copy(self.network.generation_config)
        config.do_sample = False  # temperature, top-p and top-k are applied with the batch
        config.suppress_tokens = config.suppress_tokens or None
        config._eos_token_tensor = torch.tensor(sorted(self.end_ids), device=self.network.device)
        return tuple(self.network._get_logits_processor(config, prompt_len, device=self.network.device))


def check_arguments(**given: Any) -> None:
    """Refuse wrong arguments of `HuggingFaceWorker` without loading the model, as a dry run of a stack does."""
    for key, least in _LEAST.items():
        if given.get(key) is not None:
            require.whole(key, given[key], least, _MOST.get(key))
    if "eviction_policy" in given:
        require.one_of("eviction_policy", given["eviction_policy"], ("lru", "idle_first", "branch_score"))
    if "dtype" in given:
        require.one_of("dtype", given["dtype"], ("float32", "bfloat16", "float16"))
    if given.get("device", "cpu") != "cpu":
        _check_device(given["device"], must_be_here=False)
    if "model" in given:
        model = given["model"]
        if isinstance(model, str):
            with _argument("model"):
                how_to_load(model_folder(model), model, bool(given.get("trust_remote_code")))
        elif not hasattr(model, "get_output_embeddings"):
            raise ConfigError(
                f"is {model!r}; it must be a folder, a name on the hub, tinylm/NAME, or a causal LM of transformers",
                "model",
            )
        elif not hasattr(given.get("tokenizer"), "backend_tokenizer"):
            raise ConfigError(
                f"is {given.get('tokenizer')!r}, but a loaded model needs its tokenizer: give the "
                "fast tokenizer that transformers' AutoTokenizer loads",
                "tokenizer",
            )


def load_model(
    model: Any, tokenizer: Any = None, dtype: str = "float32", device: str = "cpu", trust_remote_code: bool = False
) -> LoadedModel:
    """Load a model by name, or take a loaded one, with its tokenizer.

    Raises:
        MissingDependencyError: torch or transformers is not installed.
        ConfigError: The model or the device cannot be used.
    """
    try:
        import torch
        import transformers  # noqa: F401  (its absence would only show where a name is loaded)
    except ImportError as error:
        raise MissingDependencyError("torch and transformers", "hf") from error
    from scaffolding_ext.workers.huggingface.attention import ATTENTION

    if isinstance(model, str):
        _check_device(device, must_be_here=True)
        name, (network, tokenizer) = model, _load_by_name(model, getattr(torch, dtype), device, trust_remote_code)
    else:
        name, network = model.name_or_path or type(model).__name__, model.eval()
    with _argument("model"):
        if network._supports_attention_backend:
            network.set_attn_implementation(ATTENTION)
        if network.config.get_text_config()._attn_implementation != ATTENTION:
            raise ConfigError(
                f"is {name!r}, a {network.config.model_type}, whose attention transformers cannot replace, so that it "
                "reads no keys and values in blocks: choose another model"
            )
        said = network.generation_config.to_diff_dict()
        for field in _UNSERVED + (_UNSERVED_SAMPLING if said.get("do_sample") else ()):
            value = said.get(field)
            if value and not (value == 1 and field in _OFF_AT_ONE):
                raise ConfigError(
                    f"has a generation config with {field} {value!r}, which HuggingFaceWorker does not apply, so its "
                    f"texts would differ from those of generate(): remove {field} from generation_config.json"
                )
        defaults = SamplingDefaults.of_config(said)
    return LoadedModel(name, network, tokenizer, _end_ids(network, tokenizer), defaults)


def _load_by_name(model: str, dtype: Any, device: str, trust_remote_code: bool) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM

    with _loading(model):
        folder = model_folder(model)
        tokenizer = load_tokenizer(model, trust_remote_code)
        options = how_to_load(folder, model, trust_remote_code)
        _check_adapter(model, folder)
        network, report = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True, **options)
        _check_stored_types(model, folder, network)
        _check_weights(model, network, report)
        network.to(device).eval()
        _check_finite(model, network)
    return network, tokenizer


def _check_device(device: Any, must_be_here: bool) -> None:
    """Refuse a device that torch does not know, or one that this machine lacks although it must be here."""
    import torch

    try:
        if torch.device(device).type == "meta":
            raise RuntimeError("it cannot compute")
        torch.empty(0, device=device if must_be_here else None)
    except (AssertionError, RuntimeError, TypeError) as error:  # torch raises a different one for each reason
        raise ConfigError(
            f"is {device!r}, which torch {torch.__version__} cannot use on this machine: "
            f"{str(error).partition(chr(10))[0]}; set 'cpu', or install a torch and a driver for that device",
            "device",
        ) from error


def _check_adapter(model: str, folder: str) -> None:
    """Refuse a model with an adapter that transformers would ignore."""
    if config_of(folder, "adapter_config.json") and find_spec("peft") is None:
        raise ConfigError(
            f"is {model!r}, which has an adapter (adapter_config.json) that needs peft: install peft, or take the "
            "adapter's files out of the folder to run the model alone"
        )


def _check_weights(model: str, network: Any, report: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that lacks weights, which transformers would set at random, or has more than the model.

    Weights of other parts, such as heads that predict further tokens, are ignored with a warning.
    """
    if report["missing_keys"]:
        raise ConfigError(
            f"is {model!r}, whose checkpoint lacks the weights {_named(report['missing_keys'])}, and transformers "
            "would set them at random: get the whole checkpoint, of the architecture that its config.json names"
        )
    left_out, named = sorted(report["unexpected_keys"]), _named(report["unexpected_keys"])
    if _layers_behind(left_out, network) or any("scale" in name.rpartition(".")[2] for name in left_out):
        raise ConfigError(
            f"is {model!r}, whose config.json has no place for the weights {named}: get the config.json that belongs "
            "to the checkpoint, with its number of layers and its quantization_config"
        )
    if left_out:
        warnings.warn(
            f"{model}: the weights {named} of the checkpoint are left out; config.json has no place for them",
            stacklevel=2,
        )


def _named(names: Collection[str]) -> str:
    first, more = sorted(names)[:3], sorted(names)[3:]
    return ", ".join(first) + (f" and {len(more)} more" if more else "")


def _check_stored_types(model: str, folder: str, network: Any) -> None:
    """Refuse quantised weights that transformers would run without their scales, since it knows no such method."""
    from safetensors import safe_open
    from transformers.utils import cached_file

    if getattr(network, "hf_quantizer", None) is not None:
        return
    names = {name for name, _ in network.named_parameters()}
    for path in Path(cached_file(folder, "config.json", local_files_only=True)).parent.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in names.intersection(file.keys()):
                stored = file.get_slice(name).get_dtype()
                if stored not in _FLOATS:
                    raise ConfigError(
                        f"is {model!r}, whose weights {name} are stored as {stored}, and config.json names no "
                        f"quantization that transformers knows: {_QUANTISED}"
                    )


def _layers_behind(names: Sequence[str], network: Any) -> bool:
    """True if weights belong to layers behind the model's last one, other than those that predict further tokens."""
    further = getattr(network.config.get_text_config(), "num_nextn_predict_layers", None) or 0
    last: dict[str, int] = {}  # index of the last layer of each list
    for found in filter(None, (_IN_LIST.match(name) for name, _ in network.named_parameters())):
        last[found[1]] = max(last.get(found[1], 0), int(found[2]))
    places = filter(None, map(_IN_LIST.match, names))
    return any(place[1] in last and int(place[2]) > last[place[1]] + further for place in places)


def _check_finite(model: str, network: Any) -> None:
    """Refuse weights that are not finite, which would make every text noise, or fail later."""
    import torch

    for name, weights in network.named_parameters():
        if weights.numel() and not torch.isfinite(torch.stack(torch.aminmax(weights.detach()))).all():
            raise ConfigError(
                f"is {model!r}, whose weights {name} hold NaN or infinite numbers: download the checkpoint again, or "
                "set dtype to 'float32' if the numbers are too large for the present dtype"
            )


def check_attention(config: Any, max_seq_len: int) -> None:
    """Refuse a model, by the text part of its config, whose layers would see other positions than in training."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    original = rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
    if "longrope" in (rope.get("rope_type"), rope.get("type")) and (original is None or max_seq_len > original):
        raise ConfigError(
            f"is {max_seq_len}, but the model (longrope) numbers the positions of requests of more than {original} "
            f"tokens in another way, and a pass computes both kinds: set max_seq_len to at most {original}",
            "max_seq_len",
        )
    refused = {*(getattr(config, "layer_types", None) or ())} - {"full_attention", "sliding_attention"}
    if refused:
        raise ConfigError(
            f"has layers of type {', '.join(sorted(refused))}, and this worker computes only full_attention and "
            "sliding_attention: choose another model",
            "model",
        )


@contextmanager
def _argument(key: str) -> Iterator[None]:
    """Name the argument in an error that names none."""
    try:
        yield
    except ConfigError as error:
        raise type(error)(error.message, error.key or key) from error


@contextmanager
def _loading(model: str) -> Iterator[None]:
    """Hide transformers' progress bars, and turn its errors into errors of the argument."""
    from transformers.utils import logging

    shows_progress = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        with _argument("model"):
            yield
    except ScaffoldingExtError:
        raise
    except Exception as error:  # transformers and its libraries raise many types
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        for sign, meaning in _MEANINGS.items():
            if sign in f"{reason} {error}":
                reason = f"{meaning} ({reason})"
                break
        raise ConfigError(
            f"is {model!r}, which cannot be loaded: {reason}; give a folder with config.json, weights and "
            "tokenizer.json, a name on the hub, or tinylm/NAME",
            "model",
        ) from error
    finally:
        if shows_progress:
            logging.enable_progress_bar()


def _end_ids(network: Any, tokenizer: Any) -> frozenset[int]:
    """Return the ids that end a text, from the generation config and the tokenizer."""
    configured = network.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured, tokenizer.eos_token_id]
    vocab_size = network.get_input_embeddings().weight.shape[0]
    return frozenset(token for token in ids if token is not None and token < vocab_size)
