"""The HTTP interface of an inference engine: completions as OpenAI asks for them, and new weights."""
