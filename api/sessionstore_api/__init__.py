"""The session store over HTTP: a Starlette application. `sessionstore_api.app.create_app` makes one."""
