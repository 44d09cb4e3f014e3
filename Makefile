.PHONY: run
run:
	@echo soon
