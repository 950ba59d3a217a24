"""Where a foreign model keeps its parts: by dotted paths, and by structure where none are given."""

from __future__ import annotations

from torch import Tensor, nn

GATED_MLP = "gated MLP (two Linear H -> I, gate and up, beside one Linear I -> H, down)"


def module_at(root: nn.Module, path: str, argument: str, place: str = "") -> nn.Module:
    """The module at a dotted path below `root`, which itself is at `place` of the model.

    ValueError names the argument, its path, the part that is not there, and what is there instead.
    """
    module = root
    for part in path.split("."):
        child = getattr(module, part, None)  # not only children: models also name modules by properties
        if not isinstance(child, nn.Module):
            there = ", ".join(name for name, _ in module.named_children()) or "no modules"
            where = place or f"the {type(root).__name__}"
            raise ValueError(
                f"{argument} must be the path of a module, got {path!r}: {where} has no {part!r}, it has {there}"
            )
        module, place = child, f"{place}.{part}".lstrip(".")
    return module


def find_down_projections(model: nn.Module, layers: str | None, mlp_down: str | None) -> dict[str, nn.Module]:
    """Each layer's down projection by its dotted name, in the order of the layers.

    Args:
        layers: path of the list of layers; None looks for the one ModuleList whose items all have a down projection.
        mlp_down: path of the down projection below a layer; None looks for the one gated MLP of each layer.
    Raises:
        ValueError: a path leads nowhere, or nothing or more than one thing was found.
    """
    if layers is None:
        layers = _find_layers(model, mlp_down)
    items = module_at(model, layers, "layers")
    if not isinstance(items, nn.ModuleList | nn.Sequential) or not len(items):
        raise ValueError(f"layers must be the path of a filled ModuleList, got {layers!r}, a {type(items).__name__}")
    downs = {}
    for i, item in enumerate(items):
        place = f"{layers}.{i}"
        path = mlp_down
        if path is None:
            found = _gated_mlps(item)
            if len(found) != 1:
                raise ValueError(
                    f"mlp_down must be given: {place} must hold one {GATED_MLP} to be found without it, "
                    f"got {', '.join(found) or 'none'}"
                )
            path = found[0]
        downs[f"{place}.{path}"] = module_at(item, path, "mlp_down", place)
    if len(set(downs.values())) < len(downs):
        raise ValueError(f"layers must each have a down projection of their own, got {layers!r}, which shares them")
    return downs


def _find_layers(model: nn.Module, mlp_down: str | None) -> str:
    """Dotted path of the only list of layers. ValueError where there is none, or more than one."""

    def fits(item: nn.Module) -> bool:
        if mlp_down is None:
            return len(_gated_mlps(item)) == 1
        return any(name == mlp_down for name, _ in item.named_modules())

    lists = ((name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m))
    found = [name for name, items in lists if all(fits(item) for item in items)]
    if len(found) == 1:
        return found[0]
    wanted = f"a module {mlp_down!r}" if mlp_down is not None else f"one {GATED_MLP}"
    raise ValueError(
        f"layers must be given: one ModuleList whose items all hold {wanted} must be there to be found without it, "
        f"got {', '.join(found) or 'none'}"
    )


def _gated_mlps(layer: nn.Module) -> list[str]:
    """Paths of the down projections of the gated MLPs in a layer.

    Exactly two ways up: an attention whose heads are wider than the model has three (q, k, v) and one back, too.
    """
    found = []
    for place, module in layer.named_modules():
        linears = [(name, m) for name, m in module.named_children() if isinstance(m, nn.Linear)]
        for name, down in linears:
            inner, hidden = down.in_features, down.out_features
            up = [m for _, m in linears if (m.in_features, m.out_features) == (hidden, inner)]
            if inner != hidden and len(up) == 2:
                found.append(f"{place}.{name}".lstrip("."))
    return found


def find_embedding(model: nn.Module, path: str | None) -> nn.Module:
    """The token embedding: at a path, or the model's `get_input_embeddings()`, or its only nn.Embedding.

    ValueError: none or several were found, or the module has no weight `[V, H]`.
    """
    embed = module_at(model, path, "embed") if path is not None else _own_embedding(model)
    if embed is None:
        found = {name: m for name, m in model.named_modules() if isinstance(m, nn.Embedding)}
        if len(found) != 1:
            raise ValueError(
                "embed must be given: the model must have get_input_embeddings() or one Embedding to be found without "
                f"it, got {', '.join(found) or 'none'}"
            )
        (embed,) = found.values()
    weight = getattr(embed, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        raise ValueError(f"embed must have a weight [V, H], got a {type(embed).__name__} without")
    return embed


def _own_embedding(model: nn.Module) -> nn.Module | None:
    try:
        return model.get_input_embeddings()
    except (AttributeError, NotImplementedError):  # no Hugging Face model, or one that doesn't say
        return None
