"""Pure decisions about which request runs where and when. Imports no asyncio, time, os or logging."""
