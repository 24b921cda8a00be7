"""Child processes: the one protocol between this process and those that it starts.

    parent.Child ── requests ──> pipe ──> protocol.Channel ──> a service, by its name in `SERVICES`
                 <── answers ─── pipe <──                  <──
                 <── last words ─ stderr, and whatever the service prints

Guarantees: messages are typed, bounded in size and never pickled. However a child ends, its parent learns
how, and it leaves no process behind; a child whose parent is gone ends by itself, with all that it started.
"""
