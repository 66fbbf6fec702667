"""Workers that do one thing wrong, on a real engine, and what a validator makes of their files."""
