"""Which request runs where and when. ``Scheduler`` takes ``events`` and gives ``actions``; everything else
here is its parts. Imports no asyncio, time, os or logging."""
