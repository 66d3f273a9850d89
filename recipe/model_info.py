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


async def get_context_length(service: mint.ServiceClient, model_name: str) -> int | None:
    """Tokens that fit a model's context, prompt and reply together; None where a remote service does not say."""
    import mint
    from mint.tokenizer import load_context_length

    if isinstance(service, mint.ServiceClient):
        return load_context_length(model_name)
    capabilities = await service.get_server_capabilities_async()
    lengths = {model.model_name: model.max_context_length for model in capabilities.supported_models}
    return lengths.get(model_name)
