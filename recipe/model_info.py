"""What a model's name says about how to talk to it."""

from __future__ import annotations


def get_recommended_renderer_name(model_name: str) -> str:
    """The renderer to use with a model: the one whose chat format the model was made for."""
    import renderers

    return renderers.get_recommended_renderer_name(model_name)


def resolve_renderer_name(renderer_name: str | None, model_name: str) -> str:
    """`renderer_name` where one is given, else the recommended one."""
    return renderer_name if renderer_name is not None else get_recommended_renderer_name(model_name)
