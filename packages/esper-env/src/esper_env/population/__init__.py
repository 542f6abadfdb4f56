"""N growing hosts trained as one batched tensor program."""
