"""Child processes: the one protocol between this process and those that it starts.

    parent.Child ── requests ──> pipe ──> serving.Channel ──> a service, by its name in `SERVICES`
                 <── answers ─── pipe <──                 <──
                 <── output ──── stderr, and whatever the service prints

Guarantees: messages are typed, bounded in size and never pickled. The parent learns how a child ended,
whatever happened, and no process stays behind. A child whose parent is gone ends by itself, with everything
that it started.
"""
