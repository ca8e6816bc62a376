"""A block pool with forks and copy on write in plain Python, and what the blocks hold.

Tables are lists of block ids, ids are handed out from the front of a queue. A written block belongs to one table: a
shared one is replaced by a copy first. The memory is real (a list of tokens a block), so a table can be read as a text.
"""


class ForkingPool:
    """unhashed_first: freed blocks go to the front of the queue, the last of a table foremost; else to its end."""

    def __init__(self, num_blocks, block_tokens, unhashed_first=True):
        self.block_tokens = block_tokens
        self.unhashed_first = unhashed_first
        self.queue = list(range(1, num_blocks + 1))
        self.memory = {block: [None] * block_tokens for block in self.queue}
        self.tables = {}
        self.lengths = {}
        self.copies = []

    def refs(self, block):
        return sum(table.count(block) for table in self.tables.values())

    def open(self, name):
        self.tables[name], self.lengths[name] = [], 0

    def fork(self, name, new, tokens):
        self.tables[new] = self.tables[name][: -(-tokens // self.block_tokens)]
        self.lengths[new] = tokens

    def append(self, name, tokens):
        """False, and nothing changed, when blocks are short."""
        table, length, bt = self.tables[name], self.lengths[name], self.block_tokens
        at = length // bt
        shared = at < len(table) and self.refs(table[at]) > 1
        more = max(-(-(length + len(tokens)) // bt) - len(table), 0)
        if more + shared > len(self.queue):
            return False
        if shared:
            copy = self.queue.pop(0)
            self.copies.append((table[at], copy))
            self.memory[copy] = list(self.memory[table[at]])
            table[at] = copy
        table += [self.queue.pop(0) for _ in range(more)]
        for i, token in enumerate(tokens, length):
            assert self.refs(table[i // bt]) == 1
            self.memory[table[i // bt]][i % bt] = token
        self.lengths[name] += len(tokens)
        return True

    def free(self, name):
        table = self.tables.pop(name)
        del self.lengths[name]
        freed = [block for block in reversed(table) if self.refs(block) == 0]
        self.queue = [*freed, *self.queue] if self.unhashed_first else [*self.queue, *freed]

    def text(self, name):
        bt = self.block_tokens
        return [self.memory[self.tables[name][i // bt]][i % bt] for i in range(self.lengths[name])]

    def saved(self):
        """(entries of all tables, of these more than once in memory)."""
        entries = [block for table in self.tables.values() for block in table]
        return len(entries), len(entries) - len(set(entries))
