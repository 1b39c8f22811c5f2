"""Log-mel spectrogram in torch: the picture of sound that Whisper's encoder reads.

Used by the runner before the encoder. Stateless: a row's features depend on that row's samples alone, whoever shares
the batch. Equal to transformers' WhisperFeatureExtractor and to `log_mel_spectrogram` of openai/whisper, which define
what the model was trained on. Letters of shapes: B rows, n samples, F frames, M mel bins.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.types import MAX_WINDOW_SAMPLES, SAMPLE_RATE, Samples

N_FFT = 400  # samples, 25 ms: length of the Fourier transform and its window
HOP_SAMPLES = 160  # 10 ms: one frame
N_FREQUENCIES = N_FFT // 2 + 1
FRAMES_PER_POSITION = 2  # the encoder halves the frame rate: 20 ms per position
MAX_FRAMES = MAX_WINDOW_SAMPLES // HOP_SAMPLES  # 3000

_LEAST_POWER = 1e-10  # floor before the logarithm: digital silence becomes log10(1e-10) = -10
_SILENCE = -10.0
_DYNAMIC_RANGE = 8.0  # in log10 of power, 80 dB below the row's loudest point

# Slaney's mel scale (Auditory Toolbox): linear up to 1 kHz, logarithmic above.
_HZ_PER_MEL = 200.0 / 3.0
_LOG_FROM_HZ = 1000.0
_LOG_FROM_MEL = _LOG_FROM_HZ / _HZ_PER_MEL  # 15
_MELS_PER_E = 27.0 / torch.log(torch.tensor(6.4, dtype=torch.float64)).item()  # 27 mels for a factor of 6.4


def n_frames(n_samples: int) -> int:
    """Frames of a row of `n_samples`."""
    return n_samples // HOP_SAMPLES


class LogMel:
    """Computes log-mel spectrograms on one device."""

    def __init__(self, n_mels: int, *, device: torch.device | str = "cpu") -> None:
        self._filters = mel_filters(n_mels).to(device)  # (M, N_FREQUENCIES)
        self._window = torch.hann_window(N_FFT, device=device)
        self.device = self._filters.device

    @torch.inference_mode()
    def __call__(self, audio: torch.Tensor) -> torch.Tensor:
        """Features of rows of one length, zeros at their end included.

        Args:
            audio: (B, n) float32, n > N_FFT / 2.

        Returns:
            (B, M, n_frames(n)) float32 on this device.
        """
        return _normalised(self._log_power(audio.to(self.device)))

    @torch.inference_mode()
    def padded(self, rows: Sequence[Samples], *, n_samples: int = MAX_WINDOW_SAMPLES) -> torch.Tensor:
        """Features of rows as if each were padded with zeros to `n_samples`; only the audio is transformed.

        A frame that sees nothing but zeros has a known value, so the result equals that of `__call__`.

        Args:
            rows: B rows of 1 to `n_samples` samples each.

        Returns:
            (B, M, n_frames(n_samples)) float32 on this device.
        """
        longest = max(len(row) for row in rows)
        assert longest <= n_samples, f"a row of {longest} samples does not fit {n_samples}"
        # N_FFT zeros after the longest row keep what is mirrored at the end silent.
        n_real = min(n_samples, -(-(longest + N_FFT) // HOP_SAMPLES) * HOP_SAMPLES)
        audio = torch.zeros(len(rows), n_real)
        for i, row in enumerate(rows):
            audio[i, : len(row)] = torch.from_numpy(row)
        log_power = self._log_power(audio.to(self.device))  # (B, M, n_frames(n_real))
        missing = n_frames(n_samples) - log_power.shape[-1]
        return _normalised(torch.nn.functional.pad(log_power, (0, missing), value=_SILENCE))

    def _log_power(self, audio: torch.Tensor) -> torch.Tensor:
        """(B, n) to log10 of mel power, (B, M, n_frames(n))."""
        spectrum = torch.stft(audio, N_FFT, HOP_SAMPLES, window=self._window, return_complex=True)
        # The last frame is centred on the end of the audio; Whisper was trained without it. Frequencies go last
        # because they lie side by side in memory: several times faster on a CPU.
        spectrum = spectrum[..., :-1].transpose(1, 2)  # (B, F, N_FREQUENCIES)
        power = spectrum.real.square().add_(spectrum.imag.square())
        return (self._filters @ power.transpose(1, 2)).clamp_(min=_LEAST_POWER).log10_()  # (B, M, F)


def _normalised(log_power: torch.Tensor) -> torch.Tensor:
    """Cut each row 80 dB below its loudest point and bring it near -1..1."""
    loudest = log_power.amax(dim=(1, 2), keepdim=True)
    return (torch.maximum(log_power, loudest - _DYNAMIC_RANGE) + 4.0) / 4.0


def mel_filters(n_mels: int) -> torch.Tensor:
    """Triangular filters from Fourier to mel bins, (M, N_FREQUENCIES) float32, each of unit area in Hz (Slaney)."""
    nyquist = torch.tensor(SAMPLE_RATE / 2, dtype=torch.float64)
    edges = _mel_to_hz(torch.linspace(0, _hz_to_mel(nyquist), n_mels + 2, dtype=torch.float64))  # Hz, (M + 2,)
    bins = torch.linspace(0, float(nyquist), N_FREQUENCIES, dtype=torch.float64)  # Hz
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]  # (M, 1) each
    rising = (bins - low) / (centre - low)  # (M, N_FREQUENCIES)
    falling = (high - bins) / (high - centre)
    return (torch.minimum(rising, falling).clamp(min=0) * 2 / (high - low)).float()


def _hz_to_mel(hz: torch.Tensor) -> float:
    """Of a frequency above 1 kHz."""
    return float(_LOG_FROM_MEL + _MELS_PER_E * torch.log(hz / _LOG_FROM_HZ))


def _mel_to_hz(mel: torch.Tensor) -> torch.Tensor:
    above = _LOG_FROM_HZ * torch.exp((mel - _LOG_FROM_MEL) / _MELS_PER_E)
    return torch.where(mel < _LOG_FROM_MEL, _HZ_PER_MEL * mel, above)
