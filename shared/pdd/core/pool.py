"""Pages and prefix cache of one engine: a trie of whole computed pages, keyed by their ids under their parent, one root per cache salt.

Everything taken is given back: a page is free, or cached, or one sequence's own. Only the least recently used unpinned leaf is
evicted, so that the set of stored hash blocks stays prefix-closed. What entered and left is told by `take_changes`.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from .blocks import HASH_BLOCK, next_hash, root_hash
from .ids import BlockHash


@dataclass(slots=True, eq=False)
class Node:
    """One cached page. `refs` counts the leases whose path runs through it, so a node's refs are never below a child's."""

    parent: "Node | None"  # None: a root, which has no page
    ids: tuple[int, ...]
    page: int
    depth: int  # pages from the root to the end of this one
    block: BlockHash | None = None  # set where the depth completes a hash block, and at a root
    salt: str = ""
    refs: int = 0
    children: dict[tuple[int, ...], "Node"] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Lease:
    """What one sequence has of the pool. The first `node.depth` of `pages` are the cache's and pinned, the rest are its own."""

    node: Node
    pages: list[int]


class Pool:
    def __init__(self, pages: int, page_size: int, fingerprint: str) -> None:
        if HASH_BLOCK % page_size:
            raise ValueError(f"page size {page_size} does not divide the hash block of {HASH_BLOCK} tokens")
        self.total = pages
        self.page_size = page_size
        self._fingerprint = fingerprint
        self._vacant = bytearray(b"\1" * pages)  # one byte a page: a run is found by memmem
        self._roots: dict[str, Node] = {}
        # Unpinned nodes, least recently used first. Paths are unpinned from their end, and a pinned path pins its ancestors: so a
        # child always stands before its parent, and the first of all is a leaf.
        self._unpinned: OrderedDict[Node, None] = OrderedDict()
        self._stored: dict[BlockHash, None] = {}
        self._changed: dict[BlockHash, bool] = {}
        self.free = pages
        self.cached = 0

    @property
    def available(self) -> int:
        """Pages that `allocate` could give: the free ones and those whose eviction nothing forbids."""
        return self.free + len(self._unpinned)

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    # -- one sequence -------------------------------------------------------------------------------------------------

    def match(self, ids: Sequence[int], salt: str, limit: int) -> Lease:
        """Pin the longest cached prefix of ids[:limit], in whole pages."""
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Node(None, (), -1, 0, root_hash(self._fingerprint, salt), salt)
        root.refs += 1
        lease = Lease(root, [])
        self.deepen(lease, ids, limit)
        return lease

    def deepen(self, lease: Lease, ids: Sequence[int], limit: int) -> None:
        """Pin what the cache has learned since `match`, unless the lease has pages of its own by now."""
        if len(lease.pages) > lease.node.depth:
            return
        start = lease.node.depth * self.page_size
        while start + self.page_size <= limit:
            child = lease.node.children.get(tuple(ids[start : start + self.page_size]))
            if child is None:
                return
            self._descend(lease, child)
            lease.pages.append(child.page)
            start += self.page_size

    def allocate(self, lease: Lease, count: int) -> bool:
        """Append `count` pages, all or none; where possible they continue the last one, so that a runner may slice."""
        if count > self.available:
            return False
        while self.free < count:
            self._evict()
        self._take(lease.pages, count)
        self.free -= count
        return True

    def adopt(self, lease: Lease, ids: Sequence[int], computed: int) -> None:
        """Whole pages of ids[:computed] enter the cache, pinned by the lease, up to the first that another sequence brought earlier."""
        while (lease.node.depth + 1) * self.page_size <= computed:
            key = self._key(lease.node, ids)
            if key in lease.node.children:
                return  # its own page stays its own until it is freed
            self._descend(lease, self._insert(lease.node, key, lease.pages[lease.node.depth]))

    def give_back(self, lease: Lease, ids: Sequence[int], computed: int) -> None:
        """Unpin and free. Whole computed pages stay in the cache, where it does not have them yet."""
        while (lease.node.depth + 1) * self.page_size <= computed:
            key, page = self._key(lease.node, ids), lease.pages[lease.node.depth]
            child = lease.node.children.get(key)
            if child is None:
                child = self._insert(lease.node, key, page)
            else:
                self._vacate(page)
            self._descend(lease, child)
        for page in lease.pages[lease.node.depth :]:
            self._vacate(page)
        self._unpin_path(lease)

    def give_back_last(self, lease: Lease) -> None:
        """Give the last page back, so that its tokens can be computed again without touching what others may read."""
        page, lease.pages = lease.pages[-1], lease.pages[:-1]
        if lease.node.depth <= len(lease.pages):
            return self._vacate(page)
        node = lease.node
        assert node.parent is not None
        lease.node = node.parent
        self._unpin(node)

    # -- the cache as others see it -----------------------------------------------------------------------------------

    @property
    def changed(self) -> bool:
        return bool(self._changed)

    def take_changes(self) -> tuple[tuple[BlockHash, ...], tuple[BlockHash, ...]]:
        """Hash blocks (stored, removed) since the last call. What came and went in between is in neither."""
        stored = tuple(block for block, present in self._changed.items() if present)
        removed = tuple(block for block, present in self._changed.items() if not present)
        self._changed.clear()
        return stored, removed

    def snapshot(self) -> tuple[BlockHash, ...]:
        return tuple(self._stored)

    # -- trie ---------------------------------------------------------------------------------------------------------

    def _key(self, parent: Node, ids: Sequence[int]) -> tuple[int, ...]:
        start = parent.depth * self.page_size
        return tuple(ids[start : start + self.page_size])

    def _insert(self, parent: Node, key: tuple[int, ...], page: int) -> Node:
        node = parent.children[key] = Node(parent, key, page, parent.depth + 1)
        self.cached += 1
        self._unpinned[node] = None
        if node.depth * self.page_size % HASH_BLOCK == 0:
            node.block = self._name(node)
            self._stored[node.block] = None
            self._note(node.block, True)
        return node

    def _name(self, node: Node) -> BlockHash:
        parts = [node.ids]
        while node.parent is not None and node.parent.block is None:
            node = node.parent
            parts.append(node.ids)
        assert node.parent is not None and node.parent.block is not None
        return next_hash(node.parent.block, tuple(token for part in reversed(parts) for token in part))

    def _note(self, block: BlockHash, present: bool) -> None:
        if self._changed.get(block, present) is present:
            self._changed[block] = present
        else:
            del self._changed[block]

    def _evict(self) -> None:
        node, _ = self._unpinned.popitem(last=False)
        assert node.parent is not None and not node.children
        del node.parent.children[node.ids]
        self.cached -= 1
        self._vacate(node.page)
        if node.block is not None:
            del self._stored[node.block]
            self._note(node.block, False)
        self._forget_empty_root(node.parent)

    def _forget_empty_root(self, node: Node) -> None:
        if node.parent is None and not node.refs and not node.children:
            del self._roots[node.salt]

    def _descend(self, lease: Lease, child: Node) -> None:
        if not child.refs:
            del self._unpinned[child]
        child.refs += 1
        lease.node = child

    def _unpin(self, node: Node) -> None:
        node.refs -= 1
        if not node.refs:
            self._unpinned[node] = None

    def _unpin_path(self, lease: Lease) -> None:
        node = lease.node
        while node.parent is not None:
            self._unpin(node)
            node = node.parent
        node.refs -= 1
        self._forget_empty_root(node)
        lease.node, lease.pages = node, []

    # -- pages --------------------------------------------------------------------------------------------------------

    def _vacate(self, page: int) -> None:
        assert not self._vacant[page]
        self._vacant[page] = 1
        self.free += 1

    def _take(self, pages: list[int], count: int) -> None:
        """Right after the last page if that is free, else a run of all, else what comes first."""
        vacant, at = self._vacant, pages[-1] + 1 if pages else self.total
        if count and not (at < self.total and vacant[at]):
            at = max(vacant.find(b"\1" * count), 0)
        for _ in range(count):
            if at >= self.total or not vacant[at]:
                at = vacant.find(1, at)
                at = at if at >= 0 else vacant.find(1)
            vacant[at] = 0
            pages.append(at)
            at += 1
