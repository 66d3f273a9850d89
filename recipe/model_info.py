"""What a model's name says about how to talk to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import mint


def get_recommended_renderer_name(model_name: str) -> str:
    """The renderer to use with a model: the one whose chat format the model was made for."""
    import renderers

    return renderers.get_recommended_renderer_name(model_name)


def resolve_renderer_name(renderer_name: str | None, model_name: str) -> str:
    """`renderer_name` where one is given, else the recommended one."""
    return renderer_name if renderer_name is not None else get_recommended_renderer_name(model_name)


def get_context_length(service: mint.ServiceClient, model_name: str) -> int | None:
    """Tokens that fit a model's context, prompt and reply together; None where the service does not say."""
    for model in service.get_server_capabilities().supported_models:
        if model.model_name == model_name:
            return model.max_context_length
    return None
