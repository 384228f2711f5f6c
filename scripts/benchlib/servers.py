"""The two brokers as processes: start, ready, what they cost, stop. Only what was started here is ever signalled."""
import os
import queue
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def semel_binary(name):
    return Path(os.environ.get("SEMEL_BIN_DIR", ROOT / "target/release")) / name


class Server:
    """One broker. `ready_s` is the time from the start of its process to its word that it serves."""

    name = ""
    ready_limit_s = 120

    def __init__(self, work):
        self.data = Path(work) / self.name
        self.log = Path(work) / f"{self.name}.log"
        self.process = None
        self.address = None
        self.ready_s = None

    def command(self):
        raise NotImplementedError

    def ready(self, line):
        """The Kafka address, once `line` says that the broker serves."""
        raise NotImplementedError

    def start(self, fresh=False):
        assert self.process is None
        if fresh:
            shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(parents=True, exist_ok=True)
        command = self.command()
        lines = queue.Queue()
        log = open(self.log, "ab")
        begin = time.monotonic()
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                                        env=self.environment())

        def drain(pipe):
            for line in pipe:
                log.write(line)
                log.flush()
                lines.put((time.monotonic(), line.decode(errors="replace").strip()))
            lines.put((time.monotonic(), None))

        threading.Thread(target=drain, args=(self.process.stdout,), daemon=True).start()
        while True:
            try:
                at, line = lines.get(timeout=self.ready_limit_s)
            except queue.Empty:
                self.stop()
                raise SystemExit(f"{self.name} was not ready in {self.ready_limit_s} s: see {self.log}") from None
            if line is None:
                raise SystemExit(f"{self.name} ended before it was ready: see {self.log}")
            if address := self.ready(line):
                self.address, self.ready_s = address, at - begin
                return

    def environment(self):
        return None

    def stop(self):
        if self.process is None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def cpu_s(self):
        """User and system seconds so far, of all its threads."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self, field="VmRSS"):
        """Bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
        raise SystemExit(f"{self.name} is gone: see {self.log}")


class Semel(Server):
    name = "semel"

    def command(self):
        any_port = "127.0.0.1:0"
        return [str(semel_binary("semel")), "dev", "--data", str(self.data), "--kafka", any_port, "--grpc", any_port,
                "--http", any_port]

    def ready(self, line):
        if line.startswith("semel ready "):
            return dict(part.split("=", 1) for part in line.split()[2:])["kafka"]
        return None

    def version(self):
        return subprocess.run([self.command()[0], "--version"], capture_output=True, text=True).stdout.strip()

    @staticmethod
    def topic_config(durability):
        return {"semel.durability": durability}


class Controller(Semel):
    """One voter by itself."""

    name = "semel-controller"

    def command(self):
        self.port = free_port()
        grpc = f"127.0.0.1:{self.port}"
        return [str(semel_binary(self.name)), "--node-id", "1", "--data", str(self.data), "--grpc", grpc,
                "--http", "127.0.0.1:0", "--voters", f"1={grpc}"]

    def ready(self, line):
        return f"127.0.0.1:{self.port}" if line.startswith("semel-controller ready ") else None


class Broker(Semel):
    """One broker beside a controller."""

    name = "semel-broker"

    def __init__(self, work, controller):
        super().__init__(work)
        self.controller = controller

    def command(self):
        config = self.data / "broker.toml"
        listen = 'listen = "127.0.0.1:0"'
        config.write_text(f'node-id = 1\nlog-dirs = ["{self.data}/log"]\ncontrollers = ["{self.controller.address}"]\n'
                          f"[kafka]\n{listen}\n[grpc]\n{listen}\n[http]\n{listen}\n")
        return [str(semel_binary(self.name)), "--config", str(config)]

    def ready(self, line):
        if line.startswith("semel-broker ready "):
            return dict(part.split("=", 1) for part in line.split()[2:])["kafka"]
        return None


class Kafka(Server):
    name = "kafka"

    def command(self):
        self.port = free_port()
        return [str(ROOT / "scripts/kafka"), "run", str(self.data), str(self.port)]

    def environment(self):
        return {**os.environ, "KAFKA_HEAP": "2g"}

    def ready(self, line):
        return f"127.0.0.1:{self.port}" if "Kafka Server started" in line else None

    def version(self):
        return subprocess.run([ROOT / "scripts/kafka", "version"], capture_output=True, text=True).stdout.strip()

    @staticmethod
    def topic_config(durability):
        # The topic's own form of log.flush.interval.messages.
        return {"flush.messages": "1"} if durability == "fsync" else {}
