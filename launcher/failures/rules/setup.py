"""Before anything runs: flags, files, models, commands, ports, and GPUs that somebody else holds."""

from __future__ import annotations

import re

from launcher.failure import Culprit, Direction, Kind, Stage
from launcher.failures.rule import Rule, Where, words
from launcher.failures.story import Message

_STARTING = (None, Stage.LAUNCH, Stage.WEIGHTS, Stage.KV_POOL, Stage.GRAPH_CAPTURE, Stage.HOST_POOL)


def _is_starting(message: Message) -> bool:
    return message.stage in _STARTING


UNBALANCED = Rule(
    Kind.GPU_BUSY_OTHER_PROCESS,
    words(
        r"memory capacity is unbalanced",
        r"GPUs? may be occupied by other processes",
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        r"(?:exclusive|prohibited) (?:process )?(?:compute )?mode",
    ),
    source="0.3 (#1533) to 0.5.23 bootstrap.py, where it may be a mere warning; the CUDA runtime",
    sentence="another process, often a leftover, holds GPU memory: clean up and try again",
    culprit=Culprit.INFRASTRUCTURE,
    retry=True,
    stage=Stage.LAUNCH,
)

HTTP_PORT = Rule(
    Kind.PORT_IN_USE,
    words(r"error while attempting to bind on address[^\n]*in use"),
    source="uvicorn, after the weights were loaded; 0.5.18 may still say that it is fired up",
    sentence="the HTTP port is taken",
    culprit=Culprit.INFRASTRUCTURE,
    where=Where.LINE,
    retry=True,
    survivable=False,
    quote=True,
)

PORT = Rule(
    Kind.PORT_IN_USE,
    words(
        r"address already in use",
        r"\bEADDRINUSE\b",
        r"\[Errno (?:98|48)\]",
        r"_?port (?:at )?\d+ is not available in \d+ seconds",
        r"port \d+ (?:is )?(?:already )?(?:in use|occupied|taken)(?!\. Waiting)",
        r"(?:failed|unable) to (?:bind|listen)[^\n]*(?:port|address)",
    ),
    source="0.5.23 utils/network.py; torch TCPStore, which warns of an address that it can do without; zmq (#9396)",
    sentence="a port is taken",
    culprit=Culprit.INFRASTRUCTURE,
    where=Where.LINE,
    retry=True,
    quote=True,
)

ARGUMENTS = Rule(
    Kind.CONFIG_ERROR,
    words(
        r"error: unrecognized arguments",
        r"error: argument \S+:? ",
        r"error: ambiguous option",
        r"error: the following arguments are required",
        r"error: argument [^\n]*(?:invalid|expected)",
        r"Error: No such option|Error: Invalid value for",
    ),
    source="argparse, exit code 2 (0.4.10-0.5.23); click",
    sentence="SGLang refuses the flags",
    culprit=Culprit.CONFIGURATION,
    where=Where.LINE,
    stage=Stage.LAUNCH,
    quote=True,
)

HOST_POOL_TOO_SMALL = Rule(
    Kind.CONFIG_ERROR,
    words(
        r"host memory (?:size )?should be (?:larger|greater) than the device memory",
        r"host (?:memory )?pool[^\n]*(?:must|should) be (?:larger|greater)",
    ),
    source="0.4.10-0.5.14 memory_pool_host.py (an assertion; a warning since 0.5.15)",
    sentence="this SGLang wants a HiCache pool larger than the device's: raise hicache-size, or leave HiCache off",
    culprit=Culprit.CONFIGURATION,
    hicache=Direction.UP,
    stage=Stage.HOST_POOL,
)

HICACHE_UNSUPPORTED = Rule(
    Kind.CONFIG_ERROR,
    words(
        r"Torch not compiled with CUDA enabled",
        r"HiCache[^\n]*(?:not support|requires|only supports)",
        r"HiRadixCache only supports",
        r"hierarchical[^\n]*(?:mutually exclusive|not supported|cannot be used)",
        r"mutually exclusive",
        r"No matching HiCache strategy",
    ),
    source="0.5.6-0.5.23 server_args.py, hiradix_cache.py, hybrid_pool_assembler.py",
    sentence="SGLang cannot do this here",
    culprit=Culprit.CONFIGURATION,
    quote=True,
)

YAML = Rule(
    Kind.CONFIG_ERROR,
    words(
        r"Config file (?:must|not found|path|is)",
        r"Unsupported config option",
        r"\byaml\.\w+\.\w*Error",
        r"(?:Multiple|only one) config file",
    ),
    source="0.5.6-0.5.23 server_args_config_parser.py",
    sentence="SGLang refuses the YAML file",
    culprit=Culprit.CONFIGURATION,
    stage=Stage.LAUNCH,
    quote=True,
)

VALIDATION = Rule(
    Kind.CONFIG_ERROR,
    words(r"^(?:ValueError|AssertionError|NotImplementedError|RuntimeError|TypeError|pydantic\S*ValidationError)\b"),
    source="server_args.py (0.4.10-0.5.22), srt/arg_groups (0.5.23): what they raise is about flags",
    sentence="SGLang refuses the flags",
    culprit=Culprit.CONFIGURATION,
    frames=re.compile(r"server_args\.py|/arg_groups/|check_server_args|prepare_server_args|model_config\.py"),
    when=_is_starting,
    stage=Stage.LAUNCH,
    quote=True,
)

UNSUPPORTED = Rule(
    Kind.CONFIG_ERROR,
    words(
        r"(?:is|are) not divisible by",
        r"(?:must|should|has to) be divisible by",
        r"invalid device ordinal",
        r"is greater than the derived context_length",
        r"trust_remote_code",
        r"[Mm]odel architectures?[^\n]*not (?:currently )?supported|Unsupported architectures?",
        r"(?:KV cache|KV4|NVFP4|FP4|FP8|MXFP8)[^\n]*(?:requires|not supported|only support)",
        r"(?:attention )?backend[^\n]*(?:not supported|does not support|only supports)",
        r"[Uu]nknown quantization|[Qq]uantization[^\n]*(?:not supported|does not match|mismatch)",
        r"minimum capability|compute capability[^\n]*(?:require|support)",
        r"size_k|world size[^\n]*(?:must|larger|exceed)|tp_?size[^\n]*(?:must|should|cannot|larger|greater|exceed)",
    ),
    source="0.5.6-0.5.23 model_config.py, layers/linear.py, quantization, attention registry; the CUDA runtime",
    sentence="this model, these flags and these GPUs do not go together",
    culprit=Culprit.CONFIGURATION,
    when=_is_starting,
    quote=True,
)

MODEL = Rule(
    Kind.MODEL_NOT_FOUND,
    words(
        r"Repo id must be in the form",
        r"is not a local folder and is not a valid model identifier",
        r"does not appear to have a file named",
        r"(?:Can't|Cannot|Unable to) (?:load|find)[^\n]*(?:config|tokenizer|model|weights)",
        r"Cannot find any model weights|No (?:such )?model weights",
        r"(?:RepositoryNotFound|GatedRepo|LocalEntryNotFound|HFValidation|RevisionNotFound)Error",
        r"(?:401|403|404) Client Error[^\n]*(?:huggingface|hf-mirror|modelscope)",
        r"FileNotFoundError[^\n]*(?:config\.json|safetensors|tokenizer|\.bin|\.gguf|index\.json)",
        r"Unrecognized model in",
        r"SafetensorError|safetensors_rust",
    ),
    source="transformers, huggingface_hub, safetensors; 0.5.6-0.5.23 model_loader",
    sentence="the model cannot be found or read",
    culprit=Culprit.CONFIGURATION,
    quote=True,
)

HUB_UNREACHABLE = Rule(
    Kind.MODEL_NOT_FOUND,
    words(
        r"[Cc]ouldn'?t connect to\W+https?://[^\n]*(?:huggingface|hf-mirror|modelscope)",
        r"(?:MaxRetryError|ConnectionError|ConnectTimeout|NameResolutionError)[^\n]*(?:huggingface|hf-mirror|modelscope)",
        r"outgoing traffic has been disabled|offline mode is enabled",
    ),
    source="transformers, huggingface_hub",
    sentence="the model is not here and its hub cannot be reached",
    culprit=Culprit.INFRASTRUCTURE,
    retry=True,
    quote=True,
)

COMMAND = Rule(
    Kind.COMMAND_NOT_FOUND,
    words(
        r"No module named '?sglang(?:\.launch_server)?'?$",
        r"^(?:\S*: )?(?:line \d+: )?\S+: (?:command )?not found$",
        r"^\S*(?:sh|env|exec|bash)\b[^\n]*: No such file or directory",
        r"executable file not found in \$PATH",
        r"Unable to find image '[^']+'",
    ),
    source="Python, shells, docker",
    sentence="the launch command cannot be run",
    culprit=Culprit.CONFIGURATION,
    where=Where.LINE,
    stage=Stage.LAUNCH,
    quote=True,
)

FIRST = (HTTP_PORT, PORT, UNBALANCED, ARGUMENTS, HOST_POOL_TOO_SMALL, HICACHE_UNSUPPORTED, YAML)
LAST = (HUB_UNREACHABLE, MODEL, COMMAND, UNSUPPORTED, VALIDATION)
