// An issuer of identity tokens for the tests: the package oidc-provider, at a free port of this machine.
//
// It prints the URL of its issuer, and ends with its standard input. `POST /token?as=NAME` is its token endpoint:
//   main         the issuer, with the keys that it publishes
//   unpublished  the issuer, with keys that it does not publish
//   other        another issuer
// The header `x-clock` moves its clock by so many seconds. `POST /rotate` publishes the other keys instead. `GET /fetches` tells how
// often the keys were fetched.
import { createServer } from 'node:http';
import { createPrivateKey, generateKeyPairSync, randomUUID } from 'node:crypto';
import { pathToFileURL } from 'node:url';

const { Provider } = await import(pathToFileURL(process.env.OIDC_PROVIDER));

// Each algorithm has a key of its own.
const keys = () => {
  const jwk = (alg, type, options) => {
    // Node.js waits for itself for ever when it collects the job that made a key while it exports that key. So the key that is
    // exported is a copy.
    const { privateKey } = generateKeyPairSync(type, {
      ...options,
      privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
      publicKeyEncoding: { type: 'spki', format: 'pem' },
    });
    return { ...createPrivateKey(privateKey).export({ format: 'jwk' }), kid: randomUUID(), use: 'sig', alg };
  };
  return { keys: [
    jwk('RS256', 'rsa', { modulusLength: 2048 }),
    jwk('ES256', 'ec', { namedCurve: 'P-256' }),
    jwk('EdDSA', 'ed25519'),
  ] };
};

// A job of a CI system is a client. It asks for a token of one audience, which names the algorithm in its query.
const provider = (issuer, jwks) => {
  const made = new Provider(issuer, {
    jwks,
    clients: [{ client_id: 'job', client_secret: 'secret', grant_types: ['client_credentials'], redirect_uris: [], response_types: [] }],
    enabledJWA: { clientAuthSigningAlgValues: ['RS256'] },
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: (_, audience) => ({
          scope: '',
          accessTokenFormat: 'jwt',
          accessTokenTTL: 300,
          jwt: { sign: { alg: new URL(audience).searchParams.get('alg') ?? 'RS256' } },
        }),
      },
    },
    extraTokenClaims: (ctx) => ({ repository_id: '123', ref: ctx.get('x-ref') || 'refs/heads/main' }),
  });
  made.on('server_error', (_, error) => console.error(error));
  return made.callback();
};

const now = Date.now;
let fetches = 0;
let providers;
const server = createServer((request, response) => {
  const url = new URL(request.url, 'http://localhost');
  if (url.pathname === '/rotate') {
    [providers.main, providers.unpublished] = [providers.unpublished, providers.main];
    return response.end();
  }
  if (url.pathname === '/fetches') {
    return response.end(String(fetches));
  }
  if (url.pathname === '/jwks') {
    fetches += 1;
  }
  const shift = 1000 * Number(request.headers['x-clock'] ?? 0);
  Date.now = () => now() + shift;
  response.on('finish', () => { Date.now = now; });
  return providers[url.searchParams.get('as') ?? 'main'](request, response);
});
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  providers = {
    main: provider(issuer, keys()),
    unpublished: provider(issuer, keys()),
    other: provider(`${issuer}/other`, keys()),
  };
  console.log(issuer);
});
process.stdin.on('end', () => process.exit()).resume();
