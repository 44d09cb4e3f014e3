"""The client for model servers with OpenAI's chat completions.

What only names servers and keys does not load the HTTP client: import from the modules.
"""
