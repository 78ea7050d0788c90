"""Agent turns across streams, tools, subturns and child processes."""
