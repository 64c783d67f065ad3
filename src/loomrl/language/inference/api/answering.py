"""Completions in the shapes that clients of vLLM, SGLang and OpenAI expect, with the policy's version in each."""

import time
import uuid
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from loomrl.language.inference.api.asking import CompletionRequest, OpenAIChat, OpenAICompletion
from loomrl.language.inference.engine import Completion, Completions
from loomrl.language.policies.tokens import Tokenizer


def as_vllm(answer: Completions, ask: CompletionRequest, tokenizer: Tokenizer) -> dict[str, Any]:
    """The answer of vLLM's example server on `/generate`, JSON values; with `token_ids` and `logprobs` where they were
    requested."""
    ones = answer.completions
    said: dict[str, Any] = {
        "text": [one.text for one in ones],
        "prompt": tokenizer.decode(answer.prompt_token_ids),
        "finish_reasons": [one.finish_reason for one in ones],
        "weight_version": str(ones[0].version),
    }
    if ask.wants_log_probs:
        said["logprobs"] = [
            [[{str(token_id): log_prob}] for token_id, log_prob in zip(one.token_ids, one.log_probs, strict=True)]
            for one in ones
        ]
        said["prompt_token_ids"] = answer.prompt_token_ids
        said["token_ids"] = [one.token_ids for one in ones]
    return said


def as_sglang(answers: Sequence[Completions], ask: CompletionRequest) -> dict[str, Any] | list[dict[str, Any]]:
    """The answer of SGLang's `/generate`, JSON values: an object for one completion of one prompt, else a list, prompt
    by prompt."""
    said = [_sglang_one(answer, one, ask) for answer in answers for one in answer.completions]
    return said[0] if ask.is_single and ask.n == 1 else said


def _sglang_one(answer: Completions, one: Completion, ask: CompletionRequest) -> dict[str, Any]:
    reason: dict[str, Any] = {"type": one.finish_reason}
    match one.finish_reason:
        case "stop":
            reason["matched"] = one.stopped_by
        case "length":
            reason["length"] = len(one.token_ids)
        case "abort":
            reason["message"] = "generation was paused"
    meta_info: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        "finish_reason": reason,
        "prompt_tokens": len(answer.prompt_token_ids),
        "completion_tokens": len(one.token_ids),
        "cached_tokens": 0,
        "weight_version": str(one.version),
    }
    if ask.wants_log_probs:
        pairs = zip(one.log_probs, one.token_ids, strict=True)
        meta_info["output_token_logprobs"] = [[log_prob, token_id, None] for log_prob, token_id in pairs]
        meta_info["input_token_logprobs"] = []
    return {"text": one.text, "output_ids": one.token_ids, "meta_info": meta_info}


def as_openai_completion(
    answers: Sequence[Completions], asked: OpenAICompletion, tokenizer: Tokenizer
) -> dict[str, Any]:
    """The answer of OpenAI's `/v1/completions`, JSON values; token ids in vLLM's fields where they were requested."""
    choices: list[dict[str, Any]] = []
    for answer in answers:
        for one in answer.completions:
            choice = _choice(one, len(choices))
            choice["text"] = one.text
            choice["logprobs"] = _log_probs(one, tokenizer) if asked.logprobs is not None else None
            if asked.return_token_ids:
                choice |= {"token_ids": one.token_ids, "prompt_token_ids": answer.prompt_token_ids}
            choices.append(choice)
    return _openai("text_completion", "cmpl", asked.model, choices, answers)


def as_openai_chat(answer: Completions, asked: OpenAIChat, tokenizer: Tokenizer) -> dict[str, Any]:
    """The answer of OpenAI's `/v1/chat/completions`, JSON values; token ids in vLLM's fields where they were
    requested."""
    choices = []
    for index, one in enumerate(answer.completions):
        choice = _choice(one, index)
        choice["message"] = {"role": "assistant", "content": one.text}
        choice["logprobs"] = {"content": _chat_log_probs(one, tokenizer)} if asked.logprobs else None
        if asked.return_token_ids:
            choice["token_ids"] = one.token_ids
        choices.append(choice)
    said = _openai("chat.completion", "chatcmpl", asked.model, choices, [answer])
    return {**said, "prompt_token_ids": answer.prompt_token_ids} if asked.return_token_ids else said


def _choice(one: Completion, index: int) -> dict[str, Any]:
    return {
        "index": index,
        "finish_reason": one.finish_reason,
        "stop_reason": one.stopped_by,
        "weight_version": str(one.version),
    }


def _openai(
    kind: str, prefix: str, model: str | None, choices: list[dict[str, Any]], answers: Sequence[Completions]
) -> dict[str, Any]:
    num_prompt = sum(len(answer.prompt_token_ids) for answer in answers)
    num_completion = sum(len(one.token_ids) for answer in answers for one in answer.completions)
    versions = {choice["weight_version"] for choice in choices}
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model or "",
        "choices": choices,
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
        },
        "metadata": {"weight_version": versions.pop() if len(versions) == 1 else None},
    }


def _log_probs(one: Completion, tokenizer: Tokenizer) -> dict[str, Any]:
    texts = [tokenizer.decode([token_id]) for token_id in one.token_ids]
    offsets = [0, *accumulate(map(len, texts))][:-1]
    return {"tokens": texts, "token_logprobs": one.log_probs, "top_logprobs": None, "text_offset": offsets}


def _chat_log_probs(one: Completion, tokenizer: Tokenizer) -> list[dict[str, Any]]:
    return [
        {"token": text, "logprob": log_prob, "bytes": list(text.encode()), "top_logprobs": []}
        for text, log_prob in zip((tokenizer.decode([token]) for token in one.token_ids), one.log_probs, strict=True)
    ]
