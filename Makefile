# make demo   talk with a practice model: no key, nothing leaves this machine
# make run    start Mino for real
# make test   run the test suite
# make bench  print the speed table; fails where a limit does not hold
# make sweep  break one turn at each of its steps, in some minutes; fails where Mino does not do as it should
# make fuzz   bend streams, session files and connections by the thousand; fails where a promise does not hold
#
# Each makes .venv first when it is missing, or was made by another interpreter: make test PYTHON=python3.9

PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/made-by
WHO := import sys; print(sys.executable, sys.version.split()[0])

.PHONY: demo run test bench sweep fuzz setup

# The end of a chat by a signal is no error of make's.
CHAT_ENDED := case $$? in 129|130|137|143) ;; *) exit 1 ;; esac

demo: setup
	@$(VENV)/bin/python mino_test.py || $(CHAT_ENDED)

run: setup
	@$(VENV)/bin/python mino.py || $(CHAT_ENDED)

test: setup
	@$(VENV)/bin/python mino_test.py test $(ARGS)

bench: setup
	@$(VENV)/bin/python mino_test.py bench

sweep: setup
	@$(VENV)/bin/python mino_test.py sweep

fuzz: setup
	@$(VENV)/bin/python mino_test.py fuzz $(ARGS)

setup:
	@command -v $(PYTHON) >/dev/null || { echo "There is no $(PYTHON) here; name another one: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 9))' || { \
		echo "Mino needs Python 3.9 or newer, and $(PYTHON) is not; name another one: make PYTHON=python3.11" >&2; exit 1; }
	@who="$$($(PYTHON) -c '$(WHO)') $$(cksum < requirements.txt)"; \
	if [ "$$who" = "$$(cat $(STAMP) 2>/dev/null)" ]; then exit 0; fi; \
	$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "This Python has no venv module. On Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }; \
	echo "Making $(VENV) ..."; \
	rm -rf $(VENV) && $(PYTHON) -m venv $(VENV) && \
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements.txt && \
	echo "$$who" > $(STAMP)
