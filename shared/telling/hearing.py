"""One listener, or several of one name, and how far they have been told of what the rows say."""

import math
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection

from rota.shared.database.transactions import database_time
from rota.shared.domain.events import EventName, Listener, RowEvent
from rota.shared.domain.jsontext import object_in
from rota.shared.domain.told import Entry, Place, Told
from rota.shared.store import listeners
from rota.shared.store.feeds import FEEDS, Feed
from rota.shared.store.listeners import LEASE_SECONDS
from rota.shared.telling.calls import Calls
from rota.shared.telling.sparing import Sparing

LOOK_SECONDS = 1.0
"""How often the holder of a listener looks for what is new; and how often it writes how far it has told."""

ASK_SECONDS = 5.0
"""How often a process asks for a listener that another one holds."""

CHECK_SECONDS = 10.0
"""How often it looks whether a table gives its ids anew, and whether the database's clock was set back."""

FRESH_SECONDS = LEASE_SECONDS * 0.75
"""So long after it was seen that this process holds a listener, the lease is not over by any clock."""

MOST_AT_ONCE = 500
"""So many rows of a table are read and told before the next look."""

SHARE = 0.1
"""The part of its time that it spends on looks at which there is nothing to tell, up to a rest of ``ASK_SECONDS``."""


class News(NamedTuple):
    """What was read of a feed: the entries behind what was told, from ``now`` on, and what the untold ones tell."""

    feed: Feed
    entries: list[Entry]
    events: dict[Place, RowEvent]
    now: datetime


class Hearing:
    """Holds a listener, looks for what is new, and tells it. ``step`` is run on a thread of its own.

    hearing = Hearing(database, "jobs.alert", {EventName.MISSED: [alert]}, holder, stopping.is_set)
    hearing.step()      # returns the seconds to rest

    Each event has a place of its own, and not each table: another version of the app may hear other events.
    """

    def __init__(
        self,
        database: Sparing,
        name: str,
        by_event: dict[EventName, list[Listener]],
        holder: str,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._database = database
        self._clock = database.clock
        self.name = name
        self._by_event = by_event
        self._holder = holder
        self._is_stopping = is_stopping
        self._feeds = [feed for feed in FEEDS if feed.events & by_event.keys()]
        self._calls = Calls()
        self._told: dict[EventName, Told] = {}
        self._others: dict[str, Any] = {}
        self._is_changed = False
        self._kept_at = self._checked_at = float("-inf")
        self._lock = threading.Lock()
        self.is_held = False
        self._seen_at = float("-inf")
        self.called_at: float | None = None
        """Since when a listener is being called, in seconds of the clock's ``monotonic``."""

    def step(self) -> float:
        """Tell what is new since the last look, if this process holds the listener; returns the seconds to rest."""
        if not self._hold():
            return ASK_SECONDS
        began = self._clock.monotonic()
        told_all = [self._tell(news) for news in self._database.read(self._news)]
        if self._is_changed:
            self._keep()
            return LOOK_SECONDS if all(told_all) and self.is_held else 0
        return min(max(LOOK_SECONDS, (self._clock.monotonic() - began) * (1 / SHARE - 1)), ASK_SECONDS)

    def seen(self, asked: float, *, is_held: bool) -> None:
        """At this moment of the clock's ``monotonic`` it was asked whether this process holds the listener."""
        with self._lock:
            if asked >= self._seen_at:
                self._seen_at, self.is_held = asked, is_held

    def _hold(self) -> bool:
        if self.is_held and not self._is_fresh():
            self._renew()
        if self.is_held:
            return True
        is_free = self._database.read(partial(listeners.is_free, name=self.name, holder=self._holder))
        if is_free is None:
            self._database.write(partial(listeners.add, name=self.name, by=self._holder))
        asked = self._clock.monotonic()
        take = partial(listeners.take, name=self.name, holder=self._holder)
        if is_free is False or not self._database.write_one(take):
            return False
        self._database.read(self._begin)
        self.seen(asked, is_held=True)
        return True

    def _is_fresh(self) -> bool:
        return self._clock.monotonic() < self._seen_at + FRESH_SECONDS

    def _renew(self) -> None:
        asked = self._clock.monotonic()
        renew = partial(listeners.renew, names=[self.name], holder=self._holder)
        self.seen(asked, is_held=bool(self._database.write(renew)))

    def _begin(self, connection: Connection) -> None:
        """Go on where the last holder has stopped; where nothing was told yet, behind what is there."""
        now = self._clock.now()
        written = object_in(listeners.told(connection, self.name, self._holder))
        self._others = {name: told for name, told in written.items() if name not in self._by_event}
        self._told, self._is_changed = {}, False
        for feed in self._feeds:
            for event in feed.events & self._by_event.keys():
                if (told := Told.read(written.get(event.value), by_time=feed.by_time)) is not None:
                    self._told[event] = told
            if new := feed.events & self._by_event.keys() - self._told.keys():
                place = feed.begin(connection, now).place
                there = {entry.place for entry in feed.after(connection, place)}
                self._told.update((event, Told(place, set(there))) for event in new)
                self._is_changed = True

    def _news(self, connection: Connection) -> list[News]:
        """What is new in each feed: its entries behind what was told, and what the untold ones of them tell."""
        checks = self._clock.monotonic() >= self._checked_at + CHECK_SECONDS
        now = database_time(connection) if checks else self._clock.now()
        if checks:
            self._checked_at = self._clock.monotonic()
        news: list[News] = []
        for feed in self._feeds:
            events = feed.events & self._told.keys()
            newest = feed.newest_id(connection) if checks else math.inf
            for event in events:
                self._told[event].go_back(now)
                if self._told[event].is_beyond(newest):
                    self._told[event], self._is_changed = feed.begin(connection, now), True
            tolds = [self._told[event] for event in events]
            entries = feed.after(connection, min(told.place for told in tolds))
            new = {entry.place: entry for told in tolds for entry in told.untold(entries)[:MOST_AT_ONCE]}
            news.append(News(feed, entries, feed.told_by(connection, new.values()), now))
        return news

    def _tell(self, news: News) -> bool:
        """Tell what is new in a feed. False: there is more, or this process does not hold the listener any more."""
        tolds = {event: told for event, told in self._told.items() if event in news.feed.events}
        untold = {event: told.untold(news.entries) for event, told in tolds.items()}
        some = {event: set(new[:MOST_AT_ONCE]) for event, new in untold.items()}
        for entry in sorted(set().union(*some.values())):
            if not self._goes_on():
                return False
            says = news.events.get(entry.place)
            for event in (event for event in tolds if entry in some[event]):
                if says is not None and says.event == event:
                    self._call(self._by_event[event], says)
                tolds[event].add(entry)
            self._is_changed = True
        for told in tolds.values():
            told.settle(news.entries, news.now)
        return all(len(new) <= MOST_AT_ONCE for new in untold.values())

    def _goes_on(self) -> bool:
        """Whether the next event may be told; now and then it is written how far that has come."""
        if self._is_stopping():
            return False
        if not self._is_fresh():
            self._renew()
        if self.is_held and self._is_changed and self._clock.monotonic() >= self._kept_at + LOOK_SECONDS:
            self._keep()
        return self.is_held and not self._is_stopping()

    def _call(self, heard_by: Sequence[Listener], event: RowEvent) -> None:
        self.called_at = self._clock.monotonic()
        self._calls.tell(heard_by, event)
        self.called_at = None

    def _keep(self) -> None:
        """Write how far it has been told. If another process holds it by now, that tells the last events again."""
        asked = self._kept_at = self._clock.monotonic()
        told = {**self._others, **{event.value: told.as_json() for event, told in self._told.items()}}
        keep = partial(listeners.keep, name=self.name, holder=self._holder, told=told)
        self.seen(asked, is_held=self._database.write_one(keep))
        self._is_changed = False
