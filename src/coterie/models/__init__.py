"""Language models: loading them, rendering chats to tokens, adapters, log-probabilities."""
