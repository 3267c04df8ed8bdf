"""Pure decisions about which request runs where and when. Imports no asyncio, time, os or logging.

``Scheduler`` takes ``events`` and gives ``actions``; everything else here is its parts.
"""
