"""Write a random Llama of 0.4 MB to the folder given: small enough for a CPU, and its output depends on its context.

(SGLang's own `--load-format dummy` weights are so small that the output depends on the last token alone.)
"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    vocab_size=1000,
    max_position_embeddings=2048,
    initializer_range=0.3,
    bos_token_id=1,
    eos_token_id=2,
    tie_word_embeddings=False,
)
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(sys.argv[1])
