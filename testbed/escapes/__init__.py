"""Programs that attack the sandboxes, and who looks at what they reached."""
