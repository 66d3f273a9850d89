"""The embedded engine. Private to `mint`: everything outside goes through `mint.ServiceClient`."""
