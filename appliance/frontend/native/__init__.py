"""The native front end as Python sees it: leads its events to what serves them, and gives it request templates.
The only room of the daemon that imports the native package."""
