"""splitmix64 and a shuffle driven by it, in plain Python."""

MASK = (1 << 64) - 1


class SplitMix:
    """Draws 64 bits a call."""

    def __init__(self, seed):
        self.state = seed

    def __call__(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        bits = self.state
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB & MASK
        return bits ^ (bits >> 31)


def shuffled(values, draws):
    """Fisher and Yates from the last place down; the upper 32 bits of a draw, scaled, choose the place."""
    values = list(values)
    for i in range(len(values) - 1, 0, -1):
        at = ((draws() >> 32) * (i + 1)) >> 32
        values[i], values[at] = values[at], values[i]
    return values
