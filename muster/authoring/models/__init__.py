"""Models to begin with: fetch a pretrained one, and make the copies that a calibration measures."""
