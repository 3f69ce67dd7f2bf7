"""A conversation as somebody shows it who follows it."""

from sessionstore.model import Changes, Conversation, Message, Tag


class Mirror:
    """What a viewer shows: feed it each event of `events`, or each page of `changes`, in their order."""

    def __init__(self) -> None:
        self.conversation: Conversation | None = None
        self.since: Tag | None = None
        self._messages: dict[str, Message] = {}

    def apply(self, changes: Changes) -> None:
        """Show what has become different. `since` is then what to ask with after a break."""
        if changes.reset:
            self._messages.clear()
        for message in changes.messages:
            if message.status == "deleted":
                self._messages.pop(message.id, None)
            else:
                self._messages[message.id] = message
        self.conversation, self.since = changes.conversation, changes.since

    @property
    def messages(self) -> list[Message]:
        """The transcript."""
        placed = [message for message in self._messages.values() if message.position is not None]
        return sorted(placed, key=lambda message: message.position or 0)

    @property
    def waiting(self) -> list[Message]:
        """The inputs that wait, the oldest first."""
        waiting = [message for message in self._messages.values() if message.position is None]
        return sorted(waiting, key=lambda message: message.created_at)
