"""Stands in for SGLang's compiled kernels on a CPU: the names that 0.5.18 imports at start, none of which it calls.

Without these ops SGLang takes its plain PyTorch paths, so no result is faked; a call would raise.
"""

from typing import NoReturn


def _missing(*_args: object, **_kwargs: object) -> NoReturn:
    raise NotImplementedError("this SGLang kernel is not available on the CPU")


assign_draft_cache_locs_contiguous_cpu = _missing
assign_extend_cache_locs_cpu = _missing
assign_req_to_token_pool_cpu = _missing
build_tree_kernel_efficient_cpu = _missing
copy_all_layer_kv_cache_cpu = _missing
fill_accept_out_cache_loc_cpu = _missing
fill_bonus_tokens_cpu = _missing
rotate_input_ids_cpu = _missing
verify_tree_greedy_cpu = _missing
