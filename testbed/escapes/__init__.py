"""Programs that attack the sandbox, and who looks at what they reached."""
