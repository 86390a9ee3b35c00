"""How do clients reach models? One OpenAI endpoint that holds requests until a runner is up."""
