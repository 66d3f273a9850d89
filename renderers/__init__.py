"""Renderers: messages to tokens and back, for each chat format."""

from renderers.content_encoding import ContentEncoder, Tokenizer
from renderers.loss_weights import TrainOnWhat, messages_with_loss
from renderers.messages import (
    FunctionCall,
    Message,
    ToolCall,
    ToolSpec,
    get_text,
    get_thinking,
    get_tool_calls,
    validate_messages,
)
from renderers.qwen3 import Qwen3Renderer
from renderers.registry import get_recommended_renderer_name, get_renderer, register_renderer
from renderers.renderer import ParseStatus, RenderedMessage, Renderer, StopCondition
from renderers.role_colon import RoleColonRenderer

__all__ = [
    "ContentEncoder",
    "FunctionCall",
    "Message",
    "ParseStatus",
    "Qwen3Renderer",
    "RenderedMessage",
    "Renderer",
    "RoleColonRenderer",
    "StopCondition",
    "Tokenizer",
    "ToolCall",
    "ToolSpec",
    "TrainOnWhat",
    "get_recommended_renderer_name",
    "get_renderer",
    "get_text",
    "get_thinking",
    "get_tool_calls",
    "messages_with_loss",
    "register_renderer",
    "validate_messages",
]
