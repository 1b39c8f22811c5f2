"""Speech probability of each 32-ms block: Silero VAD v6 in plain torch, batched over sessions.

Called once per tick with the new audio of all sessions, before the endpoint rules; knows nothing of utterances. Weights
come from the silero-vad package, whose code is not imported (it changes torch's number of threads). The network:
Fourier magnitudes of a block and its context, four convolutions, an LSTM step, one output. All but the LSTM
looks at a single block, so all blocks of all sessions go through it at once; the LSTM steps through the blocks, all
sessions at once. Digital silence (a muted microphone, a browser's noise gate) goes through the LSTM only. Letters of
shapes: N blocks of all sessions, B sessions, C = 128 channels.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from engine.errors import ModelLoadError
from engine.types import Samples

BLOCK_SAMPLES = 512  # 32 ms; the network knows no other length
CONTEXT_SAMPLES = 64  # 4 ms of the previous block, shown again before each block

_WIDTH = 128  # C, of the LSTM
_MIRRORED_SAMPLES = 64  # appended to a block, so that the Fourier windows fit
_WINDOW_SAMPLES = 256  # of the Fourier transform
_HOP_SAMPLES = 128  # between Fourier windows
_STEPS_PER_BLOCK = 4  # Fourier windows
_N_FREQUENCIES = 129
_CONV_STRIDES = (1, 2, 2, 1)  # four time steps become one


@dataclass(slots=True)
class VadState:
    """What the detector remembers of one session; `probabilities` replaces its fields.

    Attributes:
        context: (CONTEXT_SAMPLES,) float32, the last samples heard.
        memory: (2, C) float32, hidden state and cell of the LSTM.
    """

    context: Samples
    memory: torch.Tensor


class SpeechDetector:
    """Silero VAD for 16 kHz, on the CPU: it is too small to be worth the way to another device."""

    def __init__(self, weights: Path | None = None) -> None:
        """Load the network.

        Args:
            weights: silero_vad.jit; None takes that of the installed silero-vad package.

        Raises:
            ModelLoadError: the file is missing, damaged or of another network.
        """
        path = weights or _packaged_weights()
        try:
            tensors = _read_torch_script(path)
            self._fourier = tensors["stft.forward_basis_buffer"][:, 0].T.contiguous()  # (256, 2 * _N_FREQUENCIES)
            self._convs = _dense_convolutions(tensors)
            self._lstm = [tensors[f"decoder.rnn.{name}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
            self._out_weight = tensors["decoder.decoder.2.weight"].reshape(_WIDTH)
            self._out_bias = tensors["decoder.decoder.2.bias"]
            self._silence = self._features(torch.zeros(1, CONTEXT_SAMPLES + BLOCK_SAMPLES))  # (1, C)
        except (OSError, KeyError, RuntimeError, ValueError) as fault:  # torch raises the last two for damaged files
            raise ModelLoadError(
                f"The speech detector cannot be loaded from {path} ({fault}). "
                "Install it again: pip install --force-reinstall 'silero-vad>=6.2,<7'."
            ) from fault

    def new_state(self) -> VadState:
        """State of a session that has heard nothing."""
        return VadState(np.zeros(CONTEXT_SAMPLES, dtype=np.float32), torch.zeros(2, _WIDTH))

    @torch.inference_mode()
    def probabilities(self, states: Sequence[VadState], audio: Sequence[Samples]) -> list[NDArray[np.float32]]:
        """Speech probability of every new block; the states move on.

        Args:
            states: one per session, each at most once.
            audio: new samples of each session, n_i whole blocks; n_i may be 0.

        Returns:
            Per session (n_i,) float32. It does not depend on how blocks are spread over calls, nor on other sessions.
        """
        assert len(states) == len(audio), f"{len(states)} states for {len(audio)} sessions"
        assert all(len(samples) % BLOCK_SAMPLES == 0 for samples in audio), "audio comes in whole blocks"
        answers = [np.zeros(0, dtype=np.float32)] * len(audio)
        # Longest first: the sessions that still have blocks are then always the first rows of the LSTM's batch.
        heard = sorted((i for i, samples in enumerate(audio) if len(samples)), key=lambda i: -len(audio[i]))
        if heard:
            for i, answer in zip(
                heard, self._advance([states[i] for i in heard], [audio[i] for i in heard]), strict=True
            ):
                answers[i] = answer
        return answers

    def _advance(self, states: Sequence[VadState], audio: Sequence[Samples]) -> list[NDArray[np.float32]]:
        """Answer B sessions that all have new blocks, longest first, and move their states on."""
        counts = np.array([len(samples) // BLOCK_SAMPLES for samples in audio])
        starts = np.cumsum(counts) - counts  # first row of each session among the N blocks
        features = self._features_where_sound(_with_context(states, audio))  # (N, C)

        hidden, cell = torch.stack([state.memory for state in states], dim=1)  # (B, C) each
        after = torch.empty_like(features)  # (N, C), hidden state after every block
        for step in range(counts[0]):
            n_left = int((counts > step).sum())
            rows = torch.from_numpy(starts[:n_left] + step)
            hidden[:n_left], cell[:n_left] = torch.lstm_cell(
                features[rows], (hidden[:n_left], cell[:n_left]), *self._lstm
            )
            after[rows] = hidden[:n_left]

        for state, samples, memory in zip(states, audio, torch.stack([hidden, cell], dim=1), strict=True):
            state.context, state.memory = samples[-CONTEXT_SAMPLES:].copy(), memory
        probabilities = torch.sigmoid(after.relu_() @ self._out_weight + self._out_bias).numpy()  # (N,)
        return [probabilities[start : start + count] for start, count in zip(starts, counts, strict=True)]

    def _features_where_sound(self, blocks: Samples) -> torch.Tensor:
        """Features of blocks, (N, CONTEXT_SAMPLES + BLOCK_SAMPLES) to (N, C); those of digital silence are known.

        The LSTM is not spared the silence: left out, it would meet the next speech with another memory.
        """
        sounding = torch.from_numpy(blocks.any(axis=1))
        features = self._silence.repeat(len(blocks), 1)
        if sounding.any():
            features[sounding] = self._features(torch.from_numpy(blocks)[sounding])
        return features

    def _features(self, blocks: torch.Tensor) -> torch.Tensor:
        """(N, CONTEXT_SAMPLES + BLOCK_SAMPLES) to the LSTM's input, (N, C)."""
        x = functional.pad(blocks, (0, _MIRRORED_SAMPLES), mode="reflect")  # (N, 640)
        x = x.unfold(1, _WINDOW_SAMPLES, _HOP_SAMPLES) @ self._fourier  # (N, 4, 2 * _N_FREQUENCIES)
        power = x[..., :_N_FREQUENCIES].square().add_(x[..., _N_FREQUENCIES:].square())  # (N, 4, _N_FREQUENCIES)
        x = power.sqrt_().transpose(1, 2).flatten(1)  # (N, 4 * _N_FREQUENCIES), channel by channel
        for weight, bias in self._convs:
            x = torch.addmm(bias, x, weight).relu_()
        return x  # (N, C)


def _dense_convolutions(tensors: dict[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The four convolutions as matrices over (channel, time), because a block is only four time steps long.

    One matrix product is several times faster than a convolution of that size.
    """
    dense = []
    n_steps = _STEPS_PER_BLOCK
    for i, stride in enumerate(_CONV_STRIDES):
        weight, bias = tensors[f"encoder.{i}.reparam_conv.weight"], tensors[f"encoder.{i}.reparam_conv.bias"]
        n_in = weight.shape[1]
        each_input = torch.eye(n_in * n_steps).reshape(-1, n_in, n_steps)
        response = functional.conv1d(each_input, weight, stride=stride, padding=1)  # (n_in * n_steps, out, steps)
        n_steps = response.shape[-1]
        dense.append((response.flatten(1), bias.repeat_interleave(n_steps)))
    return dense


def _with_context(states: Sequence[VadState], audio: Sequence[Samples]) -> Samples:
    """All blocks, each after the end of the one before it, (N, CONTEXT_SAMPLES + BLOCK_SAMPLES)."""
    new = np.concatenate(audio).reshape(-1, BLOCK_SAMPLES)  # (N, BLOCK_SAMPLES)
    blocks = np.empty((len(new), CONTEXT_SAMPLES + BLOCK_SAMPLES), dtype=np.float32)
    blocks[:, CONTEXT_SAMPLES:] = new
    blocks[1:, :CONTEXT_SAMPLES] = new[:-1, -CONTEXT_SAMPLES:]
    row = 0
    for state, samples in zip(states, audio, strict=True):
        blocks[row, :CONTEXT_SAMPLES] = state.context
        row += len(samples) // BLOCK_SAMPLES
    return blocks


def _read_torch_script(path: Path) -> dict[str, torch.Tensor]:
    """Weights of the network for 16 kHz. The package's safetensors file is not read: it holds an older network."""
    with warnings.catch_warnings():
        # TorchScript is on its way out of torch, but it is the form in which the package ships its network.
        warnings.simplefilter("ignore", DeprecationWarning)
        state = torch.jit.load(str(path), map_location="cpu").state_dict()  # type: ignore[no-untyped-call]
    prefix = "_model."
    return {name.removeprefix(prefix): weight for name, weight in state.items() if name.startswith(prefix)}


def _packaged_weights() -> Path:
    found = importlib.util.find_spec("silero_vad")
    if found is None or not found.submodule_search_locations:
        raise ModelLoadError("The package silero-vad is not installed. Install it: pip install 'silero-vad>=6.2,<7'.")
    return Path(found.submodule_search_locations[0]) / "data" / "silero_vad.jit"
