"""Tensors that several layers share: kept shared by ``.to()`` and ``load_state_dict``, named once by ``state_dict``."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn


def _named_tensors(net: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from net.named_parameters(remove_duplicate=False)
    yield from net.named_buffers(remove_duplicate=False)


def sharing(net: nn.Module) -> dict[str, str]:
    """For each further name of a shared tensor, the first one, under which it is saved."""
    first: dict[int, str] = {}
    aliases = {}
    for name, tensor in _named_tensors(net):
        if id(tensor) in first:
            aliases[name] = first[id(tensor)]
        else:
            first[id(tensor)] = name
    return aliases


def share_state_dict_names(net: nn.Module) -> None:
    """Make ``state_dict`` hold each tensor once, and ``load_state_dict`` take what it gave."""
    net.register_state_dict_post_hook(_drop_aliases)
    net.register_load_state_dict_pre_hook(_repeat_aliases)
    net.register_load_state_dict_post_hook(_share_after_load)


def _drop_aliases(net: Any, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    for alias in net._aliases:
        state.pop(prefix + alias, None)


def _repeat_aliases(net: Any, state: dict[str, Any], prefix: str, *_rest: Any) -> None:
    for alias, name in net._aliases.items():
        if prefix + name in state:
            state.setdefault(prefix + alias, state[prefix + name])


def _share_after_load(net: Any, _incompatible: Any) -> None:
    share(net)


def share(net: Any) -> None:
    """Put the first of each group of shared tensors in the place of the others."""
    for alias, name in net._aliases.items():
        place, _, attribute = alias.rpartition(".")
        owner, _, source = name.rpartition(".")
        tensor = getattr(net.get_submodule(owner), source)
        holder = net.get_submodule(place)
        if tensor is not holder._parameters.get(attribute, holder._buffers.get(attribute)):
            registry = holder._parameters if attribute in holder._parameters else holder._buffers
            registry[attribute] = tensor
