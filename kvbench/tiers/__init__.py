"""Where copies of blocks lie besides the device: host memory and storage."""
