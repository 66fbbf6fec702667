"""Workers that do one thing wrong, each caught by the real pipeline at production constants."""
