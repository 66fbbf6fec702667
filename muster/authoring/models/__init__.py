"""Models to begin with: fetch a pretrained one, read it from GGUF, and make the copies that a calibration measures."""
